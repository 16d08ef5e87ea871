"""Patches of transformers' models: how they are loaded and saved.

Every rank calls ``save_pretrained``, and rank 0 writes; under a sharded strategy all ranks gather
the weights together.  ``from_pretrained(tp_plan="auto")`` loads a plain model under a strategy that
splits layers itself, and is refused under others.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from nbmgpu.patches import PatchStack

from .own_distribution import distributes_by_itself, line_for, line_for_sizes, refuse

if TYPE_CHECKING:
    from nbmgpu.rank.session import TrainingSession

MODEL = "transformers.modeling_utils.PreTrainedModel"


def install(session: TrainingSession) -> None:
    """Let every rank take part when a model is saved; only rank 0 uploads."""
    patches = PatchStack()
    if not distributes_by_itself(session.strategy):
        strategy = session.strategy
        splits = strategy.mesh["tp"].size() if "tp" in strategy.profile.mesh else 1
        patches.wrap(
            f"{MODEL}.from_pretrained",
            lambda load: _loaded_whole(load, strategy.profile.name, splits),
        )
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

    patches.wrap(f"{MODEL}.save_pretrained", on_all_ranks)
    # Since transformers 5 it asks torch for the rank; nbmgpu writes each file once anyway.
    patches.add(f"{MODEL}.should_save_on_this_rank", lambda model, is_main_process: is_main_process)


def _loaded_whole(load: Any, strategy: str, ranks: int) -> Any:
    """Return a ``from_pretrained`` that leaves it to the strategy to split layers.

    Args:
        load: the class method.
        strategy: name of the strategy.
        ranks: number of parts into which it splits layers.
    """

    @functools.wraps(load.__func__)
    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        plan, size = kwargs.pop("tp_plan", None), kwargs.pop("tp_size", None)
        if plan not in (None, "auto"):
            refuse(
                "from_pretrained(tp_plan=...)",
                strategy,
                "%%mgpu --strategy tp --tp-plan <its name>",
            )
        if (plan and ranks == 1) or size not in (None, ranks):
            line = line_for_sizes({"tp": size}) if size else "%%mgpu --strategy tp"
            refuse("from_pretrained(tp_plan=...)", strategy, line)
        if (config := kwargs.get("distributed_config")) is not None:
            line = line_for("distributed_config", config)
            refuse("from_pretrained(distributed_config=...)", strategy, line)
        return load.__func__(cls, *args, **kwargs)

    return classmethod(from_pretrained)
