"""Strategy ``mp``: one process, with the layers of a model spread over its devices.

As accelerate's ``dispatch_model``, with these differences, which keep the cell's numbers and
objects.  Parameters move in place, where ``set_module_tensor_to_device`` replaces them and leaves
an optimizer with the old ones.  Calls are patched at ``nn.Module.__call__``, where
``add_hook_to_module`` sets attributes of the modules, which then cannot be pickled.  Outputs return
to the device of the code that uses them.  And small models are spread, too: ``get_balanced_memory``
reserves more than the largest layer on each device.

- ``strategy``: the ``Strategy`` class that a rank calls.
- ``device_map``: which module runs on which device.
- ``placement``: parameters, gradients, buffers and optimizer states on their devices, and back.
- ``module_calls``: the patched calls of modules; ``transfer``: their inputs and outputs.
- ``generators``: random numbers.
"""

from .strategy import ModelParallel

__all__ = ["ModelParallel"]
