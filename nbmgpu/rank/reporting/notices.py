"""Texts of the notices that a rank emits where a run cannot have the numbers of one device.

Each text states what differs, why, and what to do.  docs/numbers.md groups the topics.
"""

MIXED_LOSS = (
    "The loss combines terms with different denominators (a mean and a sum, or means over "
    "different numbers of targets), or applies a root, a ratio or another nonlinear function to "
    "them. Gradients are averaged over ranks with the weights of the first term, so the step "
    "differs from one device's. To get equal numbers, average all terms over the same samples as "
    "the last operation."
)
FACTOR_MATCHES_SIZE = (
    "The loss is a sum multiplied by a number that equals 1 over the number of samples in this "
    "rank's shard. The number is treated as a constant, so the losses of all ranks are added. If "
    "it is meant as a mean, divide by the number of samples (`/ len(x)`) or use .mean(), which are "
    "recognized. If it is a constant, there is nothing to do."
)
DIVISOR_MATCHES_SIZE = (
    "The loss is a sum divided by a number that equals the number of samples in this rank's shard. "
    "It is treated as that number, so the losses of all ranks are averaged. If it is a constant, "
    "steps differ from one device's: multiply by the constant instead (`* 0.25` for `/ 4`), and "
    "ignore a further notice that this may be a mean."
)
LATE_DIVISOR = (
    "The loss is a sum divided by a number that was the same on all ranks in the first steps and "
    "differed later, so it counts something in each rank's shard (selected samples, tokens). It "
    "was treated as a constant until then, so the first steps differ from one device's. To get "
    "equal numbers from the first step on, divide by a tensor (`mask.sum()`)."
)
REPEATED_BATCH = (
    "The cell fetches batches with `next()` and takes several steps before it fetches the next "
    "one. All of these steps are treated as steps on this rank's shard of that batch, and their "
    "losses are added or weighted accordingly. Steps that train on something else differ from one "
    "device's. To get equal numbers, fetch batches in a `for` loop, which shows where a batch ends."
)
SIZE_OR_CONSTANT = (
    "The loss is multiplied or divided by a number that equals the size of a rank's shard or of "
    "the whole batch, and that number also appears as a literal in the cell. In some steps it was "
    "treated as a constant. If it is a size (`len(x)`, `t.numel()`), these steps differ from one "
    "device's: use `.mean()`, or `loader.batch_size` for the size of the whole batch."
)
RATIO = (
    "The loss is multiplied by a number that the cell has computed, and the cell computes with the "
    "size of a batch (`len(x)`). If the number is a ratio with that size (`len(dataset) / "
    "len(x)`), it uses the size of this rank's shard, and steps differ from one device's. Apply "
    "both to the loss itself (`loss * len(dataset) / len(x)`), which is recognized, or use the "
    "batch size of the loader (`loader.batch_size`)."
)
SIZED_MEAN = (
    "The loss is a mean that is multiplied or divided by a number that equals a size of this "
    "rank's shard. If it is that size, the whole batch has more samples, and steps differ from one "
    "device's by a factor of the world size. Use the batch size of the loader "
    "(`loader.batch_size`)."
)
UNREAD_LOSS = (
    "The loss comes from {function}, whose autograd node does not show how it reduces over "
    "samples. It is treated as a mean over the samples of the batch. If it is a sum, or a mean "
    "over some of the samples, steps differ from one device's: return one loss per sample from it, "
    "and reduce these in the cell."
)
COMPILED_LOSS = (
    "The loss was computed in compiled code, which does not show how it reduces over samples. It "
    "is treated as a mean over the samples of the batch. If it is a sum, or a mean over some of "
    "them (tokens that are not ignored), steps differ from one device's: compute the loss in the "
    "cell, from the output of the model."
)
CROSS_SAMPLE = (
    "{where} combines several samples of the batch ({operation}), and the loss depends on the "
    "result. Each rank combines only the samples of its shard, so the step differs from one "
    "device's: a contrastive loss has fewer negatives, and a mean covers the shard. To get equal "
    "numbers, process each sample independently, or compute shared values before the loop."
)
MEAN_OF_SUBSET = (
    "The loss is a mean over samples of the batch that were selected before the forward pass. The "
    "loss does not show how many samples each rank has selected, so gradients are averaged with "
    "the number of all samples in each shard, and the step differs from one device's. To get equal "
    "numbers, divide the sum of the losses by their number (`l.sum() / len(l)`)."
)
PART_OF_BATCH = (
    "The loss covers only some samples of each batch, selected by position. Each rank selects from "
    "its own shard, so these are not the samples that one device would select. Select samples in "
    "the dataset, or by a property of the sample itself (a mask)."
)
POSITION_IN_BATCH = (
    "The loss treats samples differently by their position in the batch (`out[:4]`, halves of it). "
    "Each rank has a shard of the batch, with other samples at these positions, so the step "
    "differs from one device's. Let the dataset mark the samples (a flag, a mask), and select by "
    "that."
)
CHUNKED_BATCH = (
    "The cell trains on each batch in several chunks. Each rank splits its shard, which gives "
    "fewer or smaller chunks than the whole batch, and gradients are averaged over ranks after "
    "each chunk. Steps equal one device's if every chunk is weighted by its samples "
    "(`* len(chunk) / len(batch)`) and nothing else is done to its gradient. They differ if it is "
    "divided by a constant (`/ 4`). Split by number of chunks (`x.chunk(4)`) to keep that number."
)
LOCAL_BRANCH = (
    "{where} decides by a value of several samples (`if loss > 2:`, Python's `max()`). Each rank "
    "decides by its own shard, so it may do something else than one device. After backward() the "
    "loss is that of the global batch."
)
LOCAL_VALUE_READ = (
    "{where} reads a number that depends on the batch (`.item()`, `float()`, `.numpy()`). Each "
    "rank reads the value of its own shard, so a count or a metric covers rank 0's part of each "
    "batch, and a loss that is multiplied by the number differs from one device's. A loss that is "
    "read after backward() is that of the global batch. Measure in a loop under torch.no_grad(), "
    "and compute factors of a loss before the loop."
)
LOCAL_VALUES_WRITTEN = (
    "{where} writes values that depend on the batch into a tensor that was created before the "
    "step. Each rank writes the values of its own shard, and the notebook receives rank 0's. A "
    "table of losses, a queue of outputs or a running sum is therefore incomplete, and a loss that "
    "uses it differs from one device's. Collect such values in a loop under torch.no_grad()."
)
LOCAL_GRADIENT = (
    "The cell reads the gradient of a tensor that belongs to no optimizer (`x.grad`, as for "
    "adversarial samples). It is the gradient of this rank's loss over its shard, and larger than "
    "one device's by about a factor of the world size. Nothing differs if only its direction is "
    "used. For a tensor with one row per sample, use shards of equal size (drop_last=True and a "
    "batch size that is a multiple of the world size), and multiply the gradient by `len(x) / "
    "loader.batch_size`, which is 1 on one device. Pass any other such tensor to an optimizer."
)
AVERAGED_BUFFER = (
    "{where} writes values that depend on the batch into a buffer of the model. Each rank writes "
    "the values of its own shard, and the buffers are averaged over ranks after each backward "
    "pass, weighted by samples. A mean over samples then equals one device's; a sum, a count or a "
    "maximum does not. Write a mean over samples to get equal numbers."
)
SCALED_PENALTY = (
    "A term of the loss without samples (a penalty on weights) is divided or multiplied by the "
    "size of the batch, which in a rank is the size of its shard. The weight of the term therefore "
    "differs from one device's. Use the batch size of the loader (`loader.batch_size`), which is "
    "the same on all ranks."
)
SUMMED_PENALTY = (
    "The loss is a sum over samples plus a term without samples (a penalty on weights). The losses "
    "of all ranks are added, and each rank has the whole term, so it counts once per rank. Divide "
    "it by the world size (`/ torch.distributed.get_world_size()`), or average the loss over its "
    "samples."
)
SUM_WITH_FIXED_TERM = (
    "The loss is a sum over samples plus a term over other samples that are the same in every "
    "step, such as fixed points or a memory bank. The losses of all ranks are added, and each rank "
    "has the whole term, so it counts once per rank. Divide it by the world size "
    "(`/ torch.distributed.get_world_size()`), or average both terms over their samples."
)
WHOLE_BATCH_USED = (
    "The loop over nbmgpu.share also reads a tensor that its batch is made of. Each rank computes "
    "that in full, so a sum over it counts once per rank. Share the tensor, and use the rank's "
    "part of it."
)
OLD_DIVISOR = (
    "The loss is a sum divided by a tensor that was created before the batch. A tensor in the "
    "denominator is treated as a count over this rank's shard, such as that of a mask, and "
    "gradients are averaged over ranks. If it is a constant, such as a variance, steps are smaller "
    "than one device's by a factor of the world size: divide by its value (`/ variance.item()`)."
)
OTHER_DIMENSION_FIRST = (
    "The loss adds up over the first dimension of its terms, which is treated as the batch "
    "dimension, but the batch dimension of this loss is another one (time first). Gradients are "
    "weighted by the wrong reduction, so the step differs from one device's. Reduce over all "
    "dimensions at once (`.mean()`), or use tensors with the batch dimension first."
)
GLOBAL_BATCH_SHAPE = (
    "{where} reshapes its batch to {whole} rows, the number of samples in the whole batch. Each "
    "rank has only its shard, so these rows are parts of samples, and the step differs from one "
    "device's. Use `.flatten(1)` or `.view(len(x), -1)`."
)
OLDER_SAMPLES = (
    "A step concatenates the samples of its batch with others that were created before the step, "
    "such as a memory bank. Each rank concatenates its shard with all of them, so they count once "
    "per rank, and the step differs from one device's. Add them to the dataset, or compute their "
    "loss separately and add it to that of the batch, both as means."
)
ONE_SAMPLE = (
    "Each rank has one sample of the batch, and one sample does not tell whether the losses of "
    "samples are added or averaged, or scaled by the size of the batch (`loss / len(x)`). The loss "
    "is treated as a mean over samples. Compute it for the batch at once, with "
    "`reduction='mean'`, or use larger batches."
)
SINGLE_SAMPLE_LOSSES = (
    "The loss is composed of losses of single samples, such as `loss += f(model(x[i]), y[i])`. "
    "Each of them is treated as a loss of the whole shard, and gradients are averaged over ranks. "
    "The step equals one device's if all ranks have the same number of samples and the losses are "
    "averaged, but not if they are added: stack them in one tensor, `torch.stack(losses).sum()`, "
    "or compute the losses of the batch at once."
)
DIVIDED_BY_MULTIPLE = (
    "The loss is a sum divided by a multiple of the number of samples in this rank's shard, and "
    "the cell divides by such a multiple. It is treated as a constant, so the losses of all ranks "
    "are added. For a mean, write `.sum() / len(x) / 2` instead of `.sum() / (2 * len(x))`, which "
    "is recognized."
)
PADDED = (
    "The loader's collate_fn returns tensors whose sizes differ from batch to batch, such as "
    "padding to the longest sample. Each rank pads its shard to the longest sample of the shard. "
    "Nothing differs if the model masks or packs the padding; otherwise the step differs from one "
    "device's. To get equal numbers, pad all samples to one length in the dataset."
)
CONCATENATED_SAMPLES = (
    "The loader's collate_fn concatenates samples of different lengths into one tensor that has "
    "more rows than samples. Ranks are weighted by samples, so a mean over rows differs from one "
    "device's. To get equal numbers, divide a sum by the number of rows (`l.sum() / len(l)`)."
)
VECTOR_LOSS = (
    "backward() starts from a tensor with several elements. Ranks are weighted by their samples, "
    "which is correct if the initial gradient is divided by len(x), but not if it is divided by a "
    "constant. To get equal numbers in any case, reduce the loss to one number (.mean() or .sum())."
)
TWO_LOADERS = (
    "One step uses batches of two loaders that are split in different proportions. Ranks are "
    "weighted by their shards of the last one, so the step differs slightly from one device's. Use "
    "batch sizes that are multiples of the world size."
)
PREFETCHED_BATCHES = (
    "The loop reads batches before it trains on them, and it is unknown which of several batches "
    "with different shards a step has used: the model's input has neither their storage nor their "
    "number of rows. Ranks are weighted as if batches were used in the order they were read. Use "
    "a batch size that is a multiple of the world size, with drop_last=True, to get equal shards."
)
NOT_TRAINED = (
    "A batch was split among the ranks, but no step has trained on it, so values computed in that "
    "loop cover rank 0's shards only. Put an evaluation under torch.no_grad() or model.eval()."
)
RANDOM_STEP = (
    "The training step draws random numbers (dropout, noise). Each rank draws its own, so the "
    "numbers are as random as one device's, but not equal to them. For equal numbers, train "
    "without randomness."
)
RANDOM_HOST = (
    "The training loop draws random numbers with NumPy, Python's random module or a generator of "
    "its own, and all ranks draw the same ones. Numbers that are drawn once per batch, or outside "
    "the steps, equal one device's; numbers that are drawn per sample do not. To "
    "get equal numbers, draw once per batch, or before the loop."
)
RANDOM_DATA = (
    "The dataset draws random numbers (augmentation). Each rank draws for its own samples, so the "
    "numbers are as random as one device's, but not equal to them. For equal numbers, derive the "
    "seed from the index of the sample."
)
BATCH_NORM = (
    "The model has batch normalization in training mode. Each rank normalizes with the statistics "
    "of its own shard of the batch, so the numbers differ from one device's. Running statistics "
    "are averaged over ranks. With --sync-batchnorm they are exactly those of the global batch."
)
AUTOCAST_OFF = (
    "The cell runs its model under autocast, and --precision fp32 requests float32, so autocast is "
    "disabled inside the model. Remove --precision to train with the cell's autocast."
)
NO_CHECKPOINT_BLOCKS = (
    "--checkpointing found no blocks to recompute in the backward pass, so the model trains "
    "without it. It looks for modules in a ModuleList, or in a Sequential if they have submodules, "
    "without batch normalization."
)
BATCH_SIZES = (
    "The training loop counts with the sizes of batches (such as `total += loss.item() * len(x)`, "
    "`meter.update(loss.item(), len(x))` or `step * len(x)`), divides a number that it has read by "
    "one (`loss.item() / len(x)`), or sets a learning rate or divides gradients by one (`p.grad /= "
    "len(x)`). In a rank len(x) is the size of its shard, so the sum, the count, the ratio, the "
    "rate or the gradient differs from one device's. Count batches instead, as in `total += "
    "loss.item()`, measure in a loop under torch.no_grad(), or use the batch size of the loader "
    "(`loader.batch_size`)."
)
SIZE_CHECKED = (
    "The training loop checks whether a batch has a certain size (such as `if len(x) != "
    "batch_size: continue`). In a rank len(x) is the size of its shard, so the result differs from "
    "one device's, and all batches may be skipped. To skip a smaller last batch, pass "
    "drop_last=True to the loader."
)
NOT_SHARDED = (
    "No training batch was split among the ranks, so every rank did the whole work: the result is "
    "that of one device, without a speed-up. To share it, {optimizer}{loop}iterate over a torch "
    "DataLoader in a `for` statement (not by next(), nor in %time); or use --exact always, which "
    "divides module calls."
)
SHARE_LOOP = "put the step into a loop `for {targets} in nbmgpu.share({batches}):`, or "
SHARE_SLICES = "put the step into a loop `for x, y in nbmgpu.share(X[i:j], Y[i:j]):`, or "
WITH_OPTIMIZER = "train with an optimizer of torch.optim, and "
WITH_OPTIMIZER_ALONE = (
    "No training batch was divided among the ranks, as gradients are averaged for optimizers of "
    "torch.optim only: the result is that of one device, without a speed-up. To share the work, "
    "train with one of these; or use --exact always, which divides module calls."
)
UNBATCHED_LOADER = (
    "A DataLoader with batch_size=None returns samples instead of batches and cannot be split, so "
    "every rank trains on all of it, without a speed-up. Set a batch_size to split it."
)
UNSPLITTABLE_BATCHES = (
    "The batches of a loader cannot be split by rows (they contain objects, or tensors of "
    "different lengths), so every rank trains on all of them: the result is that of one device, "
    "without a speed-up. Return tensors with one row per sample to split them."
)
SUMMED_LOSS = (
    "The loss is a sum over its batch. With --batch per-rank or --accumulate, batches are averaged "
    "as in DistributedDataParallel, so the gradient is the mean of their sums, not the sum over "
    "the larger batch. Use a mean over the batch to get equal numbers."
)
TENSOR_HOOKS = (
    "Gradients pass through hooks on tensors or modules. A hook sees the gradient of this rank's "
    "loss, before the average over ranks. A linear hook (`g * 0.5`) gives the numbers of one "
    "device; a clamp, a norm or a threshold does not. Change gradients between backward() and "
    "step() instead."
)
LOGGED_ON_SOME_RANKS = (
    "A training step of Lightning has logged different values on different ranks (under a "
    "condition that depends on the shard of the batch), so the values of such a step are rank 0's. "
    "To get global values, log on every rank, or under a condition on the step number."
)
SHARDED_METRIC = (
    "A metric is updated or gathered in the training loop, where it covers rank 0's shard of each "
    "batch only. In an evaluation (under torch.no_grad()) it is exact."
)
AUTO_BATCH_SIZE = (
    "auto_find_batch_size is ignored, as ranks cannot search for a batch size together. An "
    "out-of-memory error ends the run; set a smaller batch size then."
)

NOT_RESUMED = (
    "The cell has ended before it came to where the checkpoint was written: it has taken another "
    "way than in the run that it resumes, and trained nothing of that."
)
NO_CHECKPOINTS = (
    "No checkpoint was written: nbmgpu writes them between iterations of loops in the cell and in "
    "functions of the notebook, and by the Trainers of Hugging Face and Lightning; this training "
    "loop is another library's. Use its own checkpoints."
)
UNFOLLOWED_CALLER = (
    "No checkpoint was written: {caller}() calls the training loop, perhaps in a loop of its own, "
    "whose iterations cannot be counted. Call it in a loop of the cell instead."
)
ITERATOR_OF_EARLIER_ITERATION = (
    "No checkpoint was written: a loop reads batches by next() from an iterator that one of its "
    "earlier iterations has made by iter(loader). Write `for batch in loader:` instead."
)
LEFT_OUT = (
    "{names}: not in checkpoints, as it cannot be pickled. A resumed cell has what it makes itself."
)

OTHER_GRADIENTS_OF_WHOLE_BATCHES = (
    "The cell {reason}, though its ranks have whole batches. This should not be: please report it, "
    "with the cell. For the numbers of one device: %%mgpu --gpus 1"
)

OTHER_GRADIENTS = (
    "The cell {reason}. It does not start again by itself, as it {obstacle}. With --exact always, "
    "all numbers are one device's, and a step takes longer."
)
