"""What the cell's own code says, read from its source.

- ``frames``: whose code is running: the cell's, the notebook's, or a library's.
- ``functions``: what it calls, and the source of that.
- ``loops``: which loop it is that asks a loader for batches; ``trains``: may it train?
- ``batch_sizes``: what a training loop does with the size of its batches.
- ``shapes``: does it shape a share by the size of the whole batch?
- ``divisions``: where code multiplies or divides by such a size.
- ``gradients``: where it reads those of something that is no weight.
- ``sizes``: expressions that are such a size.
- ``code``: which names and numbers stand in it.
"""
