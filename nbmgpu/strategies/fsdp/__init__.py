"""Strategies ``fsdp``, ``hsdp``, ``zero2``, ``fsdp+tp``: FSDP2; the cell sees full tensors.

- ``strategy``: the ``Strategy`` classes that a rank calls.
- ``tensor_parallel``: layers that are split, and their parts sharded.
- ``wrap_policy``: which modules become units of FSDP2.
- ``wrapper``, ``module_call``, ``fsdp_param``, ``fsdp_param_group``: FSDP2 itself, whose
  changes to the user's modules are undone.
"""

from .strategy import FullyShardedDataParallel, HybridSharding, ZeroStage2

__all__ = ["FullyShardedDataParallel", "HybridSharding", "ZeroStage2"]
