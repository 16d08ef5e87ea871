"""Communication between ranks through the process group's store, except of gradients.

- ``broadcast``: small values from rank 0 to all ranks, barriers, and sums over ranks.
- ``rendezvous``: whether rank 0 reaches the same operation as another rank.
- ``desync``: ranks that wait for each other at different points of the cell.
"""
