"""Strategy ``tp``: tensor parallelism, while the cell sees full tensors (``sharding/``).

- ``strategy``: the ``Strategy`` class that a rank calls.
- ``plan``: which modules are split, and how; ``split_block``: blocks whose activations stay split;
  ``layer_plan``: both for a whole model; ``root_plan``: the same over a process group.
- ``parallel_modules``: forward passes of split modules; ``tp_param``: their parameters.
- ``collectives``: differentiable collectives.
"""

from .strategy import TensorParallel

__all__ = ["TensorParallel"]
