"""What lives inside a rank: one process per device.

- ``main``: a rank's life, from the bundle to what it sends back; ``shell`` runs the cell.
- ``session``: what all of them share while the cell runs.
- ``data/``: loaders that train are split, each batch into the ranks' shares.
- ``losses/``: how a loss counts samples, read from its autograd graph.
- ``source_analysis/``: what the user's code does with its loops and batch sizes, from its source.
- ``batch_dependence/``: detects losses that depend on several samples at once.
- ``training/``: what stands around forward passes, backward passes and optimizer steps.
- ``frameworks/``: Hugging Face, accelerate, Lightning and others, each in a room of its own.
- ``store/``: broadcasts, barriers and rendezvous of ranks through the process group's store.
- ``metrics/``: step times, throughput, memory, heartbeats, progress bars.
- ``files``, ``saves``: one file, written by rank 0.
- ``rng/``: random streams and seeds that reproduce those of one device.
- ``trackers``: the notebook's run of wandb, and what the cell has done with it.
- ``recorder``, ``notices``, ``output``, ``failures``: what a rank says, and how.
- ``interruption``, ``last_words``, ``left_open``: the end of a cell, and what is said of it.
- ``comparable``: what of each rank comes back.
"""
