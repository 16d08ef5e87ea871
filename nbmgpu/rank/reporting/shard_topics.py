"""Topics of notices about ranks that have different samples of a batch."""

OF_SHARDS = frozenset({
    "ambiguous-size", "averaged-buffer", "batch-norm", "batch-sizes", "chunked-batch",
    "concatenated-samples", "cross-sample", "global-batch-shape", "late-divisor", "local-branch",
    "local-gradient", "local-value-read", "local-values-written", "mean-of-subset", "mixed-loss",
    "not-sharded", "not-trained", "old-divisor", "older-samples", "one-sample",
    "other-dimension-first", "padded", "part-of-batch", "position-in-batch", "prefetched-batches",
    "random-data", "random-host", "random-step", "repeated-batch", "scaled-penalty",
    "sharded-metric", "single-sample-losses", "size-checked", "sum-with-fixed-term",
    "summed-penalty", "tensor-hooks", "two-loaders", "unknown-loss", "unsharded-batches",
    "vector-loss", "whole-batch-used",
})  # fmt: skip
"""What does not apply where all ranks have the same samples."""

OTHER_NUMBERS = OF_SHARDS - {"not-sharded", "not-trained", "unsharded-batches"}
"""What may give other numbers than one device, because ranks have different samples."""

EXACT = "With --exact always, all numbers are one device's, and a step takes longer."
"""What to do about it, where the strategy has the option."""
