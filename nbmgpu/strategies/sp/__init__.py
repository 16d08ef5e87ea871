"""Strategies ``sp`` and ``cp``: sequence parallelism, while the cell sees whole tensors.

- ``strategy``: the ``Strategy`` classes that a rank calls.
- ``block``: layers that run on a slice of the sequence; ``trial``: whether they can; ``slices``:
  one such call; ``parameters``: their parameters meanwhile.
- ``region``: attention and dropout inside of such a call; ``heads``: the all-to-all of attention.
- ``sequence_tensor``: outputs of layers, which are gathered when something else uses them.
"""

from .strategy import ContextParallel, SequenceParallel

__all__ = ["ContextParallel", "SequenceParallel"]
