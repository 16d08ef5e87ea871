"""Static analysis of the source of the user's code.

- ``stack_frames``: whether a frame belongs to the cell, the notebook's author or a library.
- ``called_functions``: the functions that code calls, and their syntax trees.
- ``loader_loops``: the loop that iterates over a data loader.
- ``training_loops``: whether such a loop may train; ``step_variables``: what its steps bind.
- ``batch_size_use``: what a training loop computes from the size of its batches.
- ``batch_shapes``: reshapes of a shard to the size of the global batch.
- ``branch_tests``: branches that do not use what they test.
- ``divisions``: multiplications and divisions by a batch size.
- ``gradient_reads``: reads of gradients of tensors that are not parameters.
- ``size_expressions``: expressions whose value is a batch size.
- ``made_batches``: batches that a cell makes without a loader.
- ``whole_batch_use``: uses of the whole batch beside a rank's part of it.
- ``notebook_code``: the names and numbers that the notebook's code uses.
"""
