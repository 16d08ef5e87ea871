"""What stands around the cell's forward passes, backward passes and optimizer steps.

- ``units``: which objects train: optimizers, and the modules whose parameters they have.
- ``forwards``: before and after the forward pass of chosen modules.
- ``backward``: every backward pass; the loss is read and weighed here.
- ``hooks``: those of the user's that gradients pass through.
- ``steps``: every optimizer step: the strategy's turn, and the options'.
- ``shaping``: options that change modules, in their order; ``precision`` and ``batchnorm`` for it.
- ``accumulation``, ``budget``: options that change how many batches and steps there are.
"""
