"""Parameters, gradients and optimizer states of which each rank holds a part.

The cell keeps its own objects, which look like full tensors.

- ``tensor_shard``: a part of a tensor, and how the ranks hold the others; ``chunks``: its size.
- ``param_state``: a parameter of the cell, with its part and its gradient.
- ``full_tensor_view``: how parts look to the cell; ``view_operations`` and ``view_attributes`` run
  operations on them.
- ``call_order``: checks that ranks gather the same modules.
- ``local_step``: optimizer steps on this rank's part; ``gradient_norm``: clipping.
- ``replicated_values``: parameters that are not sharded, as they were before the training.
- ``parameter_storage``: the memory of full parameters; ``unshard``: the end of the cell.
- ``sharded_strategy``: the base class of strategies that shard parameters.
"""
