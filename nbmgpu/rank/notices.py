"""What is said aloud where a run cannot have the numbers of one device.

Each text says what differs, why, and what to do about it.  The documentation
(docs/numbers.md) lists the same topics.
"""

MIXED_LOSS = (
    "The loss adds terms that count differently (a mean and a sum, or means over different "
    "numbers of targets), or is a root, a ratio or another curve of such terms. Ranks are "
    "averaged by the first term's count, so the step is not exactly one device's. Average all "
    "terms over the same samples, and nothing after that, to have equal numbers."
)
TWO_LOADERS = (
    "One step uses batches of two loaders that split in different proportions. Ranks are averaged "
    "by the last one's, so the step is not exactly one device's. Use batch sizes that the number "
    "of ranks divides."
)
NOT_TRAINED = (
    "A loader was split among the ranks, but nothing was trained from it: values computed in that "
    "loop cover rank 0's share only. Put an evaluation under torch.no_grad() or model.eval()."
)
RANDOM_STEP = (
    "The training step draws random numbers (dropout, noise): ranks draw their own, so the "
    "numbers are those of a different draw than one device's, not equal to it."
)
RANDOM_HOST = (
    "The training step draws random numbers with NumPy or Python's random: all ranks draw the same "
    "ones. Drawn once per batch they are one device's; drawn per sample they are not."
)
RANDOM_DATA = (
    "The dataset draws random numbers (augmentation): each rank draws for its own samples, so the "
    "numbers are those of a different draw than one device's."
)
BATCH_NORM = (
    "The model has batch normalisation in training mode: each rank normalises with the statistics "
    "of its own share of the batch, so the numbers are not one device's. Running statistics are "
    "averaged over ranks."
)
BATCH_SIZES = (
    "The training loop adds up sizes of batches (such as `total += loss.item() * len(x)`): len(x) "
    "is this rank's share of the batch, so the sum is not one device's. Count batches instead, as "
    "in `total += loss.item()`, or measure in a loop under torch.no_grad()."
)
NOT_SHARDED = (
    "No training loader was split: every rank did the whole work, with one device's result and "
    "no speed-up. Iterate over a torch DataLoader to share it."
)
WHOLE_BATCHES = (
    "A DataLoader with batch_size=None gives samples, not batches: it cannot be split, and every "
    "rank trains on all of it."
)
UNCUT_BATCHES = (
    "A loader's batches cannot be cut by rows (they hold objects, or tensors of different "
    "lengths): every rank trains on all of them, with one device's result and no speed-up."
)
TENSOR_HOOKS = (
    "Gradients pass through hooks that the notebook registered on tensors: they see each rank's "
    "own gradient, before the average over ranks."
)
