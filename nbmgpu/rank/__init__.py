"""What lives inside a rank: one process per device.

- ``main``: a rank's life, from the bundle to what it sends back; ``shell`` runs the cell.
- ``session``: what all of them share while the cell runs.
- ``data/``: loaders that train are split, each batch into the ranks' shares.
- ``losses/``: how a loss counts samples, read from its autograd graph.
- ``source/``: what the cell's own code says of its loops and of the sizes of its batches.
- ``batch_dependence/``: does a step treat samples one by one, or together?
- ``training/``: what stands around forward passes, backward passes and optimizer steps.
- ``frameworks/``: Hugging Face, accelerate, Lightning and others, each in a room of its own.
- ``store/``: what ranks tell one another beside gradients.
- ``measuring/``: times, memory, vital signs, progress bars.
- ``files``, ``saves``: one file, written by rank 0.
- ``streams``, ``host_stream``, ``entropy``: random numbers that are one device's.
- ``trackers``: the notebook's run of wandb, and what the cell has done with it.
- ``recorder``, ``notices``, ``output``, ``failures``: what a rank says, and how.
- ``interruption``, ``last_words``, ``left_open``: the end of a cell, and what is said of it.
- ``comparable``: what of each rank comes back.
"""
