"""Training idioms: cells as people write them for one device, to be run there and on ranks.

``idiom`` describes one; ``notebook`` runs cells in this process; ``comparison`` runs an idiom on
one device and on ranks and compares what both leave; ``sources`` are models and loops that many
use; the idioms themselves are in ``tables``.
"""
