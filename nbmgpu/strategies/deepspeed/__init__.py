"""``deepspeed_stage_1`` to ``_3``: DeepSpeed's engine, below a cell that sees its own objects.

``strategy`` is what the rank talks to.  ``config`` reads options and the user's JSON, ``fit``
refuses what DeepSpeed cannot train exactly, ``home`` holds one engine and what belongs to
it, ``layout`` and ``parts`` know which piece of a tensor lies where, ``watch`` and
``gathering`` show it whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .strategy import Stage1, Stage2, Stage2Offload, Stage3, Stage3Offload

__all__ = ["Stage1", "Stage2", "Stage2Offload", "Stage3", "Stage3Offload"]


def __getattr__(name: str) -> Any:
    """Import strategies when they are asked for: the kernel reads ``config`` without torch."""
    if name not in __all__:
        raise AttributeError(name)
    from . import strategy

    return getattr(strategy, name)
