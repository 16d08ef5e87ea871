"""``deepspeed_stage_1`` to ``_3``: DeepSpeed's engine, below a cell that sees its own objects.

``strategy`` is what the rank talks to.  ``config`` reads options and the user's JSON, ``fit``
refuses what DeepSpeed cannot train exactly, ``home`` holds one engine and what belongs to
it, ``layout`` and ``parts`` know which piece of a tensor lies where, ``watch`` and
``gathering`` show it whole.
"""

from .strategy import Stage1, Stage2, Stage2Offload, Stage3, Stage3Offload

__all__ = ["Stage1", "Stage2", "Stage2Offload", "Stage3", "Stage3Offload"]
