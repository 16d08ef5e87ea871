"""Loaders of a training cell, split among ranks.

- ``loaders``: which are split: those that a training loop reads.
- ``split_loader``: how one is: each rank draws its share of every global batch.
- ``in_workers``: whether samples draw random numbers in a loader's workers.
- ``share``: a rank's part of a batch; ``cutting``: index lists before loading, or rows after it.
- ``collated``: shares that a ``collate_fn`` of the user's has put together by itself.
- ``ahead``, ``batch_in_use``: loops that read batches before they train on them.
"""
