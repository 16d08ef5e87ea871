"""``--profile``: what the optimizer steps of a cell spend their time on.

- ``step_profiler``: runs ``torch.profiler`` during the chosen steps, and writes the trace.
- ``phases``: names what nbmgpu does in a step, in the trace.
- ``step_parts``: adds up computing, communication, waiting for data, and the rest.

Nothing here is imported, and nothing of a step is wrapped, in a run without the option.
"""
