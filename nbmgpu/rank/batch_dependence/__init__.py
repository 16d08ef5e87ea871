"""Detects training steps whose loss depends on several samples of the batch at once.

Ranks train on shards of the global batch.  Their step equals one device's only if the loss is a
mean or a sum of per-sample terms.  A contrastive loss compares samples with each other, an
advantage is normalized over its batch, hard samples are mined from the whole batch: on a shard,
these give other results.  The autograd graph does not reveal this, since much of it happens in
data without gradients.  So a dispatch mode observes every operation of a few steps and tracks
which sample each part of a tensor belongs to, from the loader's batch to the loss.

- ``tags``: what is known about the samples in a tensor.
- ``op_call``: an observed operator call, with the tags of its operands.
- ``op_rules``: the rule of each operator, from the tags of its operands to those of its outputs;
  ``elementwise_ops``, ``indexing_ops``, ``layout_ops``, ``reduction_ops`` and ``selection_ops``
  implement them.
- ``escaped_values``, ``numpy_access``: values that leave the step.
- ``branches``: what the user's code decides by values of the batch.
- ``op_findings``, ``trained_samples``: what else is recorded about a step.
- ``step_values``: what variables of the cell hold after a step; ``shard_dependence``: whether their
  rows would be the same in another shard.
- ``dispatch_mode``: observes the operators.
- ``detector``: chooses the steps to observe, and reports.

A tensor that no rule covers loses its tag; nothing is reported about it.
"""

from .detector import SPLIT_BY_COUNT, BatchDependenceDetector

__all__ = ["SPLIT_BY_COUNT", "BatchDependenceDetector"]
