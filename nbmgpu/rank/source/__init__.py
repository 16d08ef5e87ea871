"""What the cell's own code says, read from its source.

- ``frames``: whose code is running: the cell's, the notebook's, or a library's.
- ``loops``: is a loop over a loader a training loop?
- ``batch_sizes``: what a training loop does with the size of its batches.
- ``sizes``: expressions that are such a size.
"""
