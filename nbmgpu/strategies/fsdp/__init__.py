"""Strategies ``fsdp``, ``hsdp``, ``zero2``: FSDP2, while the cell sees full tensors (``sharding``).

- ``strategy``: the ``Strategy`` classes that a rank calls.
- ``wrap_policy``: which modules become units of FSDP2.
- ``wrapper``, ``module_call``, ``fsdp_param``, ``fsdp_param_group``: FSDP2 itself, whose
  changes to the user's modules are undone.
- ``call_order``: checks that ranks issue the same collectives.
"""

from .strategy import FullyShardedDataParallel, HybridSharding, ZeroStage2

__all__ = ["FullyShardedDataParallel", "HybridSharding", "ZeroStage2"]
