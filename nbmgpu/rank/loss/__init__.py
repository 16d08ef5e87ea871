"""Reads how a loss counts samples, so that ranks can be weighted as on one device.

- ``graph_reader``: traverses the graph from the loss to its reductions over samples; start here.
- ``loss_graph``: the result; ``graph_path``: divisors and factors on the path to a node.
- ``term_recorder``: records each reduction over samples, its kind and its count.
- ``autograd_nodes``, ``reductions``: single nodes of an autograd graph.
- ``stacked_losses``: several losses in one tensor: of tasks, or of single samples.
- ``saved_sizes``: numbers in the graph that equal sizes of the shard.
- ``divisors``, ``size_inference``: whether such a number is a size or a constant;
  ``divisor_agreement`` asks the other ranks.
- ``one_sample``: whether sizes can be told from other numbers where each rank has one sample.
- ``masked_sums``: sums whose mask excludes everything.
- ``loss_weights``: weights losses before the backward pass, for engines that average by themselves.
- ``readable_losses``: losses that the cell reads afterwards.
- ``loss_analysis``: groups ``loss_state``, the losses of the current step, and ``diagnostics``, the
  notices about losses that ranks cannot reproduce.
"""
