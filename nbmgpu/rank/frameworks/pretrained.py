"""Patches of transformers' ``save_pretrained``: every rank calls it, and rank 0 writes.

Under a sharded strategy all ranks gather the weights together.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from nbmgpu.patches import PatchStack

if TYPE_CHECKING:
    from nbmgpu.rank.session import TrainingSession

MODEL = "transformers.modeling_utils.PreTrainedModel"


def install(session: TrainingSession) -> None:
    """Let every rank take part when a model is saved; only rank 0 uploads."""
    if not session.rank_info.shards_data:
        return
    rank = session.rank_info.rank

    def on_all_ranks(save: Any) -> Any:
        @functools.wraps(save)
        def save_pretrained(
            model: Any, *args: Any, push_to_hub: bool = False, **kwargs: Any
        ) -> Any:
            return save(model, *args, push_to_hub=push_to_hub and rank == 0, **kwargs)

        return save_pretrained

    patches = PatchStack()
    patches.wrap(f"{MODEL}.save_pretrained", on_all_ranks)
    # Since transformers 5 it asks torch for the rank; nbmgpu writes each file once anyway.
    patches.add(f"{MODEL}.should_save_on_this_rank", lambda model, is_main_process: is_main_process)
