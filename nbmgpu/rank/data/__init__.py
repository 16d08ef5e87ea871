"""Shards the batches of a training cell's DataLoaders among ranks.

- ``loader_patch``: replaces ``DataLoader.__iter__`` and decides which loaders are sharded.
- ``sharded_loader``: one sharded loader; ``shard_reader`` loads a rank's shard of each batch.
- ``shared_batches``: batches that the cell makes itself, divided by ``nbmgpu.share``.
- ``loader_steps``: begins and ends steps and passes; ``loader_context`` is what loaders need.
- ``batch_sampling``: draws global batches with the notebook's random stream.
- ``batch_split``: splits index lists before loading, or rows after collation.
- ``batch_shard``: the shard of a global batch that a rank holds.
- ``collated_shapes``: shapes of batches from a custom ``collate_fn``.
- ``worker_draws``: detects random draws in DataLoader workers.
- ``loader_events``, ``current_batch``: loops that prefetch batches before they train on them.
- ``batch_tensors``: the tensors of a batch.
- ``last_batch``: which variables hold parts of the last batch; ``whole_values`` joins them at the
  end of a pass, and the kernel at the end of the cell.
"""
