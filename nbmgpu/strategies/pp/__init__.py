"""Strategies ``pp``, ``tp+pp``, ``fsdp+pp``, ``fsdp+tp+pp``: pipeline parallelism.

It is behind ``model(x)``, while the cell sees full tensors.

- ``strategy``: the ``Strategy`` class that a rank calls.
- ``stacks``: which modules are blocks of a pipeline, and which rank owns each;
  ``block_sequence``: sequences of modules in a model; ``stage_balance``: where stages begin.
- ``block``: the forward pass of one block, which is put off until the last one is called;
  ``deferred``: the tensors that it returns meanwhile; ``call``: such a call; ``segment``: calls
  that run together.
- ``trial``: may a block run on parts of a batch?
- ``plan``: which values cross the boundaries between ranks; ``segment_run``: the forward and the
  backward pass of a segment, in microbatches; ``transport``: tensors between ranks.
- ``stage_param``: a parameter of a stage, split and sharded over its ranks; ``stage_grads``: the
  gradients of a stage's parameters; ``stage_random``: its random numbers.
- ``block_time``: how long a block takes; ``rebalancing``: stages of about the same time.
- ``idle_time``: how long ranks wait for each other.
"""

from .strategy import (
    PipelineParallel,
    ShardedPipelineParallel,
    ShardedTensorPipelineParallel,
    TensorPipelineParallel,
)

__all__ = [
    "PipelineParallel",
    "ShardedPipelineParallel",
    "ShardedTensorPipelineParallel",
    "TensorPipelineParallel",
]
