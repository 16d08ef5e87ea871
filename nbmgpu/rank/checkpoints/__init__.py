"""Checkpoints of a cell in the middle of its loops, and the way back to where one was written.

``instrumentation`` lets each loop of the cell, and of the notebook's functions, report its
iterations; ``loops`` counts them.  A checkpoint (``checkpointer``) is written between two
iterations: states of models, optimizers and the like, and values of variables (``capture``).  A
resumed cell runs from its first line, skips the bodies of iterations that are over (``resume``),
and has its state restored in place where the checkpoint was written.
"""
