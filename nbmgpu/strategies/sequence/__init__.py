"""Layers on slices of the sequence, while the cell sees whole tensors: for ``sp``, ``cp``, ``tp``.

- ``model_layers``: the layers of a model, and what is around them.
- ``block``: layers that run on a slice of the sequence; ``trial``: whether they can; ``slices``:
  one such call; ``parameters``: their parameters meanwhile.
- ``region``: attention and dropout inside of such a call; ``heads``: the all-to-all of attention.
- ``sequence_tensor``: outputs of layers, which are gathered when something else uses them;
  ``sequence_rows``: what runs on slices of logits; ``held_outputs``: those held at the cell's end.
"""
