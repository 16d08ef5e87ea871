"""Experiment trackers: the notebook's run goes on in the cell, and each point is logged once.

The general rule is the same for all of them.  Rank 0 opens the notebook's run again, by what the
kernel has recorded of it, and calls reach the library.  On the other ranks, and in comparisons on
all ranks, the same calls reach nothing.  So a run needs no kernel, and points arrive while it runs.
``base.Tracker`` describes what a library has to provide; ``registry`` lists the libraries.
"""
