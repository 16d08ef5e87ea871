"""Forward passes, backward passes and optimizer steps of a cell, and options that change them.

- ``optimizer_registry``: the optimizers of the process, and the modules whose parameters they have.
- ``trained_objects``: passes these to the strategy.
- ``backward``: the patch of ``torch.autograd.backward``; ``loss_reader`` reads the losses of a pass
  and ``reduction_plan`` plans the reduction of gradients.
- ``optimizer_steps``: the patches of ``Optimizer.step`` and gradient clipping.
- ``user_hooks``: finds hooks of the user that see gradients.
- ``model_options``: options that change modules: ``sync_batchnorm``, ``activation_checkpointing``,
  ``precision``, ``compilation``.
- ``step_options``: options that change steps: ``gradient_accumulation``, ``step_limit``.
"""
