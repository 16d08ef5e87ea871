"""``save_pretrained`` of transformers: every rank goes all the way, and rank 0 writes.

Under a sharded strategy the weights are gathered on that way, by all ranks together.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from nbmgpu.rank.session import Session


def tap(session: Session) -> None:
    """Let no rank be left out when a model is saved; an upload is rank 0's alone."""
    if not session.distributes:
        return
    module: Any = importlib.import_module("transformers.modeling_utils")
    kind = module.PreTrainedModel
    save = kind.save_pretrained

    @functools.wraps(save)
    def save_pretrained(model: Any, *args: Any, push_to_hub: bool = False, **kwargs: Any) -> Any:
        return save(model, *args, push_to_hub=push_to_hub and session.rank == 0, **kwargs)

    kind.save_pretrained = save_pretrained
    # Since transformers 5 it asks torch for the rank; what keeps files single is ours.
    kind.should_save_on_this_rank = lambda model, is_main_process: is_main_process
