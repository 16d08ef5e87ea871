"""Random number generators of a rank.

- ``streams``: the notebook's random stream, equal on all ranks, and the rank's own.
- ``host_rng``: the rank's own states of Python's and NumPy's generators while it loads samples.
- ``seeding``: seeds for generators that are created without one.
- ``generators``: the generators that code can reach, and their states.
- ``draw_detector``: whether code has drawn from them.
"""
