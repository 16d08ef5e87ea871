"""``--exact always``: the cell runs as on one device, and models on some of the samples per rank.

- ``strategy``: what it adds to a ``Strategy`` class.
- ``models``: the models of a cell; ``block``: a module that runs on this rank's samples where
  ``trial`` has shown that this is right, also with other samples of other ranks
  (``perturbation``); ``samples``: one such call, and what it changes.
- ``region``: the samples of such a call; ``draws``: its random numbers; ``batch_norm``: statistics
  of the batch; ``recomputation``: checkpoints in it.
"""

from .strategy import with_whole_batches

__all__ = ["with_whole_batches"]
