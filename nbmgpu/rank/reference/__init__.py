"""The reference: a process beside the ranks that runs the cell on one device, for some seconds.

It compares the gradients of each optimizer step with those of the ranks.  Where they differ, the
cell starts again with whole batches; see ``--verify``.
"""
