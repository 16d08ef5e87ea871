"""One rank of a run: the process that runs the cell on one device.

- ``main``: entry point; ``command_line`` and ``rank_environment`` are its input.
- ``startup``, ``shutdown``: what happens before and after the cell; ``shell`` runs it.
- ``session``: creates and connects the parts of a training session: ``rank_info``, ``progress``
  and objects of the packages below.
- ``data/``: shards the loaders that a training loop reads.
- ``loss/``: how losses reduce over samples, read from their autograd graphs.
- ``batch_dependence/``: whether the samples of a batch affect one another in a step.
- ``training/``: patches of backward passes, optimizer steps and forward passes.
- ``source_analysis/``: loops and batch sizes in the code of the cell.
- ``frameworks/``: patches of training libraries: Hugging Face, accelerate, Lightning and others.
- ``store/``: small values that ranks exchange through the process group's store.
- ``files/``: files of the cell, which rank 0 writes.
- ``rng/``: random numbers that are those of one device.
- ``checkpoints/``: writes checkpoints, and goes on from one.
- ``reference/``: the cell on one device, beside the ranks, to compare their steps with its own.
- ``metrics/``: times, memory, heartbeat, progress bars; ``profiling/``: traces of some steps.
- ``reporting/``: notices, failures, output, and the final report.
- ``current``: whether this process is a rank, for ``nbmgpu.log``.
- ``interrupts``: signal handlers; ``tracker_logging``: experiment trackers.
- ``restart``: ends the rank for the cell to start again with whole batches; ``effects``: what it
  has done that cannot be undone; ``undivided_steps``: whether its steps are divided at all.
- ``held_rank``: runs the next cells; ``hang_reports``: what it does where a run makes no progress.
- ``device``: the device, and what its errors mean.
- ``user_modules``: attributes of the user's modules; ``cell_settings``: settings of the process;
  ``after_import``: calls after an import.
- ``comparable_values``: what ranks other than 0 return.
"""
