"""How fast a rank is, and what it uses.

- ``pace``, ``stopwatch``: the time of steps; ``throughput``: samples a second.
- ``footprint``: the most memory that it needed; ``heap``: memory that steps use again.
- ``vitals``: a thread that tells once a second how the rank is.
- ``tqdm_tap``: bars of the cell as progress of the run.
"""
