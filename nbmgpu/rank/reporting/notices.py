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
MULTIPLIED_BY_CHANCE = (
    "The loss is a sum multiplied by a number that is 1 over the samples of this rank's share. It "
    "is taken for a constant, so that the ranks' losses add up. If it is meant as a mean, divide "
    "by the number of samples (`/ len(x)`) or use .mean(): these are recognised. For a constant "
    "nothing is to be done."
)
DIVIDED_BY_CHANCE = (
    "The loss is a sum divided by a number that equals the samples of this rank's share. It is "
    "taken for their number, so that the ranks' losses are averaged. If it is a constant, steps "
    "are not one device's: multiply by the constant instead (`* 0.25` for `/ 4`); a note that this "
    "may be a mean is then of no account."
)
LATE_COUNT = (
    "The loss is a sum divided by a number that was the same on all ranks in the first steps, and "
    "then was not: it is a count of what each rank has (chosen samples, tokens). It was taken for "
    "a constant, so these first steps were not one device's. Divide by a tensor (`mask.sum()`) to "
    "have equal numbers from the first step on."
)
SAME_BATCH = (
    "The cell takes batches by `next()`, and takes several steps before it takes another one: all "
    "of them are read as steps on the rank's share of that batch, and its losses are added up or "
    "weighed by it. If some of them train on something else, these are not one device's: take "
    "batches in a `for` loop, whose end says that they are done with."
)
EITHER = (
    "The loss is multiplied or divided by a number that is the size of a rank's share, or of the "
    "whole batch, and that stands in the cell as well. In some steps it was taken for a constant. "
    "If it is a size (`len(x)`, `t.numel()`), these steps are not one device's: use `.mean()`, or "
    "`loader.batch_size` where the size of the whole batch is meant."
)
RATIO = (
    "The loss is multiplied by a number that the cell has calculated, and the cell calculates with "
    "the size of a batch (`len(x)`). If it is a ratio of that and something else (`len(dataset) / "
    "len(x)`), it is of this rank's share, and steps are not one device's: multiply and divide the "
    "loss itself (`loss * len(dataset) / len(x)`), which is recognised, or use the batch size of "
    "the loader (`loader.batch_size`)."
)
SIZED_MEAN = (
    "The loss is a mean that is divided by a number that equals the samples of this rank's share. "
    "If it is their number, the whole batch has more, and steps are larger than one device's by "
    "the number of ranks: use the batch size of the loader (`loader.batch_size`)."
)
UNREAD_LOSS = (
    "The loss comes from {function}, a function that does not tell how it reduces over samples. It "
    "is taken for a mean over the samples of the batch. If it is a sum, or a mean over some of "
    "them, steps are not one device's: let it return one loss per sample, and reduce these."
)
COMPILED_LOSS = (
    "The loss was computed in compiled code, which does not tell how it reduces over samples. It "
    "is taken for a mean over the samples of the batch. If it is a sum, or a mean over some of "
    "them (tokens that are not ignored), steps are not one device's: compute the loss in the cell "
    "from what the model returns."
)
COUPLED_BATCH = (
    "{where} takes several samples of the batch together ({operation}), and the loss depends on "
    "it. A rank has only its share of the batch to do that with, so the step is not one device's: "
    "a contrastive loss sees fewer negatives, a mean is the share's. For equal numbers, treat each "
    "sample by itself, or compute what they have in common before the loop."
)
CHOSEN_MEAN = (
    "The loss is a mean over some samples of the batch, chosen before the model has seen them: how "
    "many a rank has chosen does not show in the loss, and ranks are averaged by all samples of "
    "their shares. Divide the sum of the losses by their number (`l.sum() / len(l)`) to have equal "
    "numbers."
)
PART_OF_BATCH = (
    "The loss covers only some samples of each batch, picked by their place in it. A rank picks "
    "from its own share, so they are not those that one device would pick. Pick in the dataset, or "
    "by something that a sample has itself (a mask)."
)
BY_PLACE = (
    "The loss treats samples differently by their place in the batch (`out[:4]`, halves of it): a "
    "rank has its share of the batch, and other samples at these places. Let the dataset say which "
    "sample is which (a flag, a mask), and choose by that."
)
IN_PIECES = (
    "The cell trains on each batch in several pieces. A rank cuts its share: that gives fewer or "
    "smaller pieces than the whole batch, and after each of them gradients are averaged over "
    "ranks. Steps are one device's where every piece counts by its samples (`* len(piece) / "
    "len(batch)`) and nothing is done to its gradient alone; a constant (`/ 4`) counts otherwise. "
    "Pieces by number (`x.chunk(4)`) are as many."
)
OWN_NUMBER = (
    "{where} reads a number that depends on the batch (`.item()`, `float()`, `.numpy()`): a rank "
    "reads that of its share. So a count or a metric covers rank 0's part of each batch, and a "
    "loss that is multiplied by such a number is not one device's. A loss read after backward() is "
    "the global batch's; measure in a loop under torch.no_grad(), and compute factors of a loss "
    "before it."
)
OWN_VALUES = (
    "{where} writes what depends on the batch into a tensor that is older than the step: there, "
    "each rank has what its own share gives, and the notebook gets rank 0's. A table of losses, a "
    "queue of outputs or a running sum has a part only, and so has a loss that uses it."
)
OWN_GRADIENT = (
    "The cell reads the gradient of a tensor that no optimizer has (`x.grad`, as for adversarial "
    "samples): it is that of the rank's own loss, over its share of the batch, and larger than one "
    "device's by about the number of ranks. Where only its direction counts, nothing differs. "
    "Else, for a tensor with a row for each sample, let all shares be equal (drop_last=True, a "
    "batch size that the number of ranks divides), and multiply it by `len(x) / "
    "loader.batch_size`, which is 1 on one device. Give any other such tensor to an optimizer."
)
AVERAGED_BUFFER = (
    "{where} writes what depends on the batch into a buffer of the model. Each rank writes what "
    "its own share gives, and after each backward pass ranks' buffers are averaged, by their "
    "samples: a mean over samples is one device's then; a sum, a count or the largest value is not."
)
SCALED_PENALTY = (
    "A term of the loss that has no samples in it (a penalty on weights) is divided or multiplied "
    "by the size of the batch: in a rank that is the size of its share. So the term counts "
    "otherwise than on one device. Use the batch size of the loader (`loader.batch_size`), which "
    "is the same everywhere."
)
SUMMED_PENALTY = (
    "The loss is a sum over samples and has a term without any (a penalty on weights). Ranks' "
    "losses are added up, and with them the term, which each rank has in full: it counts once for "
    "every rank. Divide it by the number of ranks (`/ torch.distributed.get_world_size()`), or "
    "average the loss over its samples."
)
SUM_BESIDE = (
    "The loss is a sum over samples and has a term over others that are the same in every step, "
    "such as fixed points or a memory. Ranks' losses are added up, and with them the term, which "
    "each rank has in full: it counts once for every rank. Divide it by the number of ranks "
    "(`/ torch.distributed.get_world_size()`), or average both terms over their samples."
)
OLD_DIVISOR = (
    "The loss is a sum divided by a tensor that is older than the batch. Tensors that divide are "
    "taken for counts of a rank's share, as of a mask, and ranks are averaged. If it is a "
    "constant, as a variance is, steps are those of a loss that is smaller by the number of ranks: "
    "divide by its value (`/ variance.item()`)."
)
TIME_FIRST = (
    "The loss adds up over the first dimension of its terms, which is taken for that of samples, "
    "but samples lie along another one (time first). Ranks are weighted by the wrong reduction, so "
    "the step is not one device's. Reduce over all dimensions at once (`.mean()`), or put samples "
    "first."
)
SHAPED_BY_WHOLE = (
    "{where} makes {whole} rows of its batch, as many as the whole batch has samples. A rank has "
    "its share only, so that rows are parts of samples there, and the step is not one device's. "
    "Write `.flatten(1)` or `.view(len(x), -1)`."
)
OTHER_ROWS = (
    "A step joins the samples of its batch with others that are older than the step, such as a "
    "memory. Each rank joins its share with all of them, so they count as often as there are "
    "ranks, and the step is not one device's. Put them into the dataset, or compute their loss by "
    "itself and add it to that of the batch, both as means."
)
BY_SAMPLE = (
    "The loss is made of losses of single samples, such as `loss += f(model(x[i]), y[i])`. Each is "
    "read as a loss of the whole share, and ranks are averaged. That is one device's step where "
    "all ranks have as many samples and the losses are averaged, but not where they are added "
    "up: put them into one tensor, `torch.stack(losses).sum()`, or compute the losses of the batch "
    "at once."
)
DIVIDED_BY_MULTIPLE = (
    "The loss is a sum divided by a number that is a multiple of the samples of this rank's share, "
    "and the cell divides by such a multiple. It is taken for a constant, so that ranks' losses "
    "add up. For a mean, write `.sum() / len(x) / 2` instead of `.sum() / (2 * len(x))`: that is "
    "recognised."
)
PADDED = (
    "The loader's collate_fn gives tensors whose sizes differ from batch to batch, as padding to "
    "the longest sample does. A rank pads its share of the batch, to the longest of that: where "
    "the model masks or packs what is padded, nothing differs; where it does not, the step is not "
    "one device's. Pad all samples to one length in the dataset to have equal numbers."
)
JOINED = (
    "The loader's collate_fn joins samples of different lengths to one tensor, with more rows than "
    "samples. A mean over rows is one device's only if ranks are weighed by rows, and they are "
    "weighed by samples. Divide a sum by the number of rows (`l.sum() / len(l)`) to have equal "
    "numbers."
)
VECTOR_LOSS = (
    "backward() begins at a tensor of several elements. Ranks are averaged by their samples, as is "
    "right where its gradient is divided by len(x), but not by a constant. Reduce the loss to one "
    "number (.mean() or .sum()) to have equal numbers in any case."
)
TWO_LOADERS = (
    "One step uses batches of two loaders that split in different proportions. Ranks are averaged "
    "by the last one's, so the step is not exactly one device's. Use batch sizes that the number "
    "of ranks divides."
)
READS_AHEAD = (
    "The loop reads batches ahead of those it trains on, and nothing told which of several batches "
    "with different shares a step used: what the model was given has neither their memory nor "
    "their number of rows. Ranks are averaged as if batches were used in order. A batch size that "
    "the number of ranks divides, with drop_last=True, leaves no doubt."
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
    "The training loop draws random numbers with NumPy, Python's random or a generator of its own: "
    "all ranks draw the same ones. Drawn once per batch, or beside the steps, they are one "
    "device's; drawn per sample they are not."
)
RANDOM_DATA = (
    "The dataset draws random numbers (augmentation): each rank draws for its own samples, so the "
    "numbers are those of a different draw than one device's."
)
BATCH_NORM = (
    "The model has batch normalisation in training mode: each rank normalises with the statistics "
    "of its own share of the batch, so the numbers are not one device's. Running statistics are "
    "averaged over ranks. With --sync-batchnorm they are those of the global batch, exactly."
)
AUTOCAST_OFF = (
    "The cell runs its model under autocast, and --precision fp32 asks for float32: autocast is "
    "off inside the model. Leave --precision out to train as the cell says."
)
NO_BLOCKS = (
    "--checkpointing found no blocks to compute again in the backward pass: it looks for members "
    "of a ModuleList, or of a Sequential if they have parts of their own, without batch "
    "normalisation. The model trains as it is."
)
BATCH_SIZES = (
    "The training loop counts by sizes of batches (such as `total += loss.item() * len(x)`, "
    "`meter.update(loss.item(), len(x))` or `step * len(x)`), divides a number that it has read by "
    "one (`loss.item() / len(x)`), or sets a learning rate or divides gradients by them "
    "(`p.grad /= len(x)`): len(x) is this rank's share of the batch, so the sum, the count, the "
    "ratio, the rate or the gradient is not one device's. Count batches instead, as in "
    "`total += loss.item()`, or measure in a loop under torch.no_grad(); else use the batch size "
    "of the loader (`loader.batch_size`)."
)
SIZE_ASKED = (
    "The training loop asks whether a batch has some size (such as `if len(x) != batch_size: "
    "continue`): len(x) is this rank's share, so the answer is not one device's, and all batches "
    "may be left out. To leave out a last batch that is smaller, give the loader drop_last=True."
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
SUMMED_LOSS = (
    "The loss is a sum over its batch. Batches of ranks (--batch per-rank), or accumulated ones "
    "(--accumulate), are averaged as DistributedDataParallel does, so the gradient is the mean of "
    "their sums, not the sum over a larger batch."
)
TENSOR_HOOKS = (
    "Gradients pass through hooks on tensors or modules: they see those of each rank's own loss, "
    "before the average over ranks. What is linear in them (`g * 0.5`) is one device's; a clamp, a "
    "norm or a threshold is not."
)
LOGGED_ON_SOME = (
    "A training step of Lightning logged different values on different ranks (on a condition that "
    "depends on the share of the batch): what was logged in such a step is rank 0's. Log on every "
    "rank, or on a condition of the step's number, to have global values."
)
METRIC_SHARE = (
    "A metric is updated or gathered in the training loop: there it covers rank 0's share of each "
    "batch, not all of it. In an evaluation (under torch.no_grad()) it is exact."
)
AUTO_BATCH_SIZE = (
    "auto_find_batch_size is left out: ranks cannot look for a batch size together. An error for "
    "want of memory ends the run; then set a smaller batch."
)
