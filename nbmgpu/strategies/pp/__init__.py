"""Strategy ``pp``: pipeline parallelism behind ``model(x)``, while the cell sees full tensors.

- ``strategy``: the ``Strategy`` class that a rank calls.
- ``stacks``: which modules are blocks of a pipeline, and which rank owns each.
- ``block``: the forward pass of one block, which is put off until the last one is called;
  ``deferred``: the tensors that it returns meanwhile; ``call``: such a call; ``segment``: calls
  that run together.
- ``trial``: may a block run on parts of a batch?
- ``plan``: which values cross the boundaries between ranks; ``segment_run``: the forward and the
  backward pass of a segment, in microbatches; ``transport``: tensors between ranks.
- ``checkpoint``: layers inside of a checkpoint.
- ``stage_random``: random numbers of stages; ``generators``: those of torch.
"""

from .strategy import PipelineParallel

__all__ = ["PipelineParallel"]
