"""Runs on several machines, for engines whose machines share the run folder.

On the first machine a *head* serves the store of the run and supervises all ranks.  On each machine
a *node launcher* forks the ranks of that machine.  Both are processes of the cluster's job, and
outlive the kernel.  Node launchers report to the head, and get signals from it, through the store.

======================  ============================================================
key of the store        value
======================  ============================================================
``nodes``               a line per node that has reached the head: its name
``exits``               a line per rank that has ended: its number and its exit code
``lost``                a line per node launcher that has ended: its node, and its ranks
``problems``            a line per reason why a node cannot run ranks
``leaving``             a line per node that the scheduler has asked to end: its name
``signal/N``            the N-th signal: its number, and whether rank 0 is spared
======================  ============================================================
"""

import signal

NODES, PROBLEMS, LEAVING, SIGNAL = "nodes", "problems", "leaving", "signal/{}"

STOP, FORCE_STOP = signal.SIGUSR1, signal.SIGUSR2
"""Signals by which an engine stops a head at once: a file may take a while to cross a network."""
