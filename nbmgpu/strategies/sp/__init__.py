"""Strategies ``sp`` and ``cp``: sequence parallelism, while the cell sees whole tensors.

``strategy`` has the ``Strategy`` classes that a rank calls; ``strategies.sequence`` has the rest.
"""

from .strategy import ContextParallel, SequenceParallel

__all__ = ["ContextParallel", "SequenceParallel"]
