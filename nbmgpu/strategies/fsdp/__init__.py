"""Strategies ``fsdp`` and ``zero2``: FSDP2, while the cell sees full tensors.

- ``strategy``: the ``Strategy`` classes that a rank calls.
- ``wrap_policy``: which modules become units of FSDP2.
- ``wrapper``, ``module_call``, ``fsdp_param``, ``fsdp_param_group``: FSDP2 itself, whose
  changes to the user's modules are undone.
- ``row_shards``, ``full_tensor_view``, ``view_operations``, ``view_attributes``: what the cell sees
  of a sharded tensor.
- ``sharded_steps``: optimizer steps on a rank's rows.
- ``parameter_storage``, ``unshard``: the memory of full parameters, freed and restored.
- ``call_order``: checks that ranks issue the same collectives.
"""

from .strategy import FullyShardedDataParallel, ZeroStage2

__all__ = ["FullyShardedDataParallel", "ZeroStage2"]
