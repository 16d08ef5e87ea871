"""Speed, memory and progress of a rank.

- ``step_metrics``: losses, learning rates and the user's metrics of each step.
- ``step_time``, ``optimizer_step_times``: the time of steps.
- ``throughput``: samples and tokens per second.
- ``memory``: peak memory and bytes of tensors.
- ``allocator``: keeps freed memory for the next step.
- ``heartbeat``: a thread that reports progress and resource use once a second.
- ``tqdm_progress``: tqdm bars of the cell as progress events.
"""
