"""transformers' record of the outputs that a model can return, such as ``hidden_states``.

A model's class enters it when a model is made.  A model that comes from the notebook is not made in
the rank, and would return None for its hidden states and attentions.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from nbmgpu.patches import PatchStack

if TYPE_CHECKING:
    from nbmgpu.rank.session import TrainingSession

REGISTRY = "transformers.utils.output_capturing._CanRecordRegistry"


def install(session: TrainingSession) -> None:
    """Let the record have what a model's class declares."""

    def with_declared(get: Any) -> Any:
        @functools.wraps(get)
        def found(registry: Any, model: Any) -> Any:
            return get(registry, model) or getattr(model, "_can_record_outputs", None) or {}

        return found

    PatchStack().wrap(f"{REGISTRY}.get", with_declared)
