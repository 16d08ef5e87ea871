"""Strategy ``tp``: tensor parallelism, while the cell sees full tensors (``sharding/``).

- ``strategy``: the ``Strategy`` class that a rank calls.
- ``plan``: which modules are split, and how; ``named_plan``: the user's choice; ``split_block``:
  blocks whose activations may stay split; ``layer_plan``: all of these for one model;
  ``root_plan``: the same over a process group.
- ``parallel_modules``: forward passes of split modules; ``parallel_block``: of blocks, and their
  trials; ``tp_param``: parameters.
- ``collectives``: differentiable collectives.
"""

from .strategy import TensorParallel

__all__ = ["TensorParallel"]
