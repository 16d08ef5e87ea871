"""Strategies ``deepspeed_stage_1`` to ``_3``: DeepSpeed's engine, while the cell sees full tensors.

- ``strategy``: the ``Strategy`` classes that a rank calls.
- ``config``: the engine's configuration, from options and the user's JSON file.
- ``compatibility``: refuses units that DeepSpeed cannot train exactly.
- ``initialization``: imports DeepSpeed and creates its engine.
- ``engine_wrapper``: an engine, ``zero_engine``, with what it trains, ``trained_unit``, and its
  partitioned state; ``backward_pass`` and ``optimizer_step`` run it.
- ``partition_layout``: which elements a rank holds; ``partitioned_weights``,
  ``partitioned_state``: what is in them.
- ``original_modules``, ``mixed_precision``: the user's modules, restored after the cell, and casts
  of their inputs and outputs.
- ``parameter_proxies``, ``parameter_gathering``: gather them when the cell accesses them.
- ``call_order``: checks that ranks issue the same collectives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .strategy import Stage1, Stage2, Stage2Offload, Stage3, Stage3Offload

__all__ = ["Stage1", "Stage2", "Stage2Offload", "Stage3", "Stage3Offload"]


def __getattr__(name: str) -> Any:
    """Import strategies on first access: the kernel imports ``config`` without torch."""
    if name not in __all__:
        raise AttributeError(name)
    from . import strategy

    return getattr(strategy, name)
