"""Topics of notices about numbers that may not be those of one device, and what the cell does."""

from __future__ import annotations

DIFFERS = {
    "random-step": "draws other random numbers than one device (dropout, noise)",
    "random-data": "draws other random numbers for its samples than one device (augmentation)",
    "batch-norm": "normalizes over each rank's shard (batch normalization)",
    "random-host": "draws the same random numbers on every rank",
    "mixed-loss": "has a loss whose terms average over different numbers of samples",
    "cross-sample": "lets samples of a batch interact, and each rank has only its shard",
    "part-of-batch": "picks samples by their position in each rank's shard",
    "position-in-batch": "treats samples by their position in each rank's shard",
    "local-branch": "decides by values of each rank's shard",
    "chunked-batch": "splits each rank's shard into pieces, not the whole batch",
    "mean-of-subset": "averages over samples chosen before the model",
    "scaled-penalty": "divides a penalty by the size of each rank's shard",
    "vector-loss": "calls backward() on several elements",
    "two-loaders": "trains on batches that shard in different ways",
    "late-divisor": "used a count as a constant in its first steps",
    "different-batches": "skips different batches on different ranks",
    "different-reductions": "chooses its loss by the contents of each rank's shard",
    "different-numbers": "computes with numbers of each rank's shard, or decides by them",
    "different-weights": "has trained different models on different ranks",
    "different-buffers": "has different buffers on different ranks",
    "summed-loss": "averages summed losses over ranks",
    "compress": "reduces gradients in half precision",
}
"""Notices after which the loss may differ from one device's, and why."""

MAY_DIFFER = {
    "ambiguous-size": "counts by numbers that may be the size of each rank's shard",
    "single-sample-losses": "adds up losses of single samples",
    "one-sample": "has one sample per rank, which does not tell how the losses of samples add up",
    "batch-sizes": "counts by the size of each rank's shard",
    "size-checked": "tests the size of each rank's shard",
    "concatenated-samples": "weights ranks by samples, not rows",
    "padded": "pads each rank's shard separately",
    "global-batch-shape": "reshapes each rank's shard by the size of the whole batch",
    "older-samples": "joins each rank's shard with the same other rows",
    "local-value-read": "reads numbers off each rank's shard",
    "averaged-buffer": "averages buffers that each rank updates from its shard",
    "local-gradient": "reads gradients of each rank's own loss",
    "local-values-written": "keeps values of each rank's shard",
    "old-divisor": "divides its loss by a tensor that may not be a count",
    "sum-with-fixed-term": "adds a term that every rank has in full to a sum",
    "whole-batch-used": "uses the whole batch on every rank, beside its shard",
    "summed-penalty": "adds a penalty that every rank has in full to a sum",
    "other-dimension-first": "reduces another dimension before that of samples",
    "unknown-loss": "gets its loss from code that hides its reduction",
    "prefetched-batches": "prefetches batches",
    "repeated-batch": "takes several steps on one batch",
    "tensor-hooks": "has hooks on each rank's own gradients",
}
"""Notices that explain a loss that differs from one device's; usually it does not."""

OTHER_VALUES = {"sharded-metric": "updates a metric with each rank's shard"}
"""Notices about values beside the loss that may differ from one device's."""

REASONS = DIFFERS | MAY_DIFFER | OTHER_VALUES
"""What a cell does that starts again because of a notice, by its topic."""

OTHER_GRADIENTS = (
    "trains with other gradients than one device: that of {name} in step {step} is {error}"
)
OTHER_PARAMETERS = "steps other parameters than one device, in step {step}"
OTHER_VALUE = "has other values than one device: `{path}` is {there} in step {step}, not {here}"
"""What a cell does that starts again because a reference has found it; see ``--verify``."""

SAME_WORK = "does all the work on every rank"
"""What a cell does that starts again to divide its work, not because of its numbers."""
