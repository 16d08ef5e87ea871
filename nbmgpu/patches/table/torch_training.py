"""What a rank replaces in torch: backward passes, optimizer steps, loaders, random numbers."""

from __future__ import annotations

from .build import patched
from .libraries import NUMPY, TORCH

COUNTS_BYTES = (
    "Bytes that a rank sends per step are counted where it hands tensors to a collective."
)
NOT_COUNTED = "bytes sent by it are not counted"

ENTRIES = (
    *patched(
        TORCH, "torch.autograd", "backward",
        "Every backward pass goes through it; here losses are weighted by their samples and "
        "gradients are reduced over ranks.",
    ),
    *patched(
        TORCH, "torch.autograd", "grad",
        "Steps whose batches are not divided are measured up to here.",
    ),
    *patched(
        TORCH, "torch.optim.Optimizer", "__init__ __setstate__ add_param_group",
        "Every optimizer that is created, unpickled or extended is registered here.",
    ),
    *patched(
        TORCH, "torch.amp.autocast_mode.autocast", "__enter__",
        "Beside the ranks, one device notes that gradients have less than float32's precision.",
    ),
    *patched(
        TORCH, "torch.nn.RNNBase", "flatten_parameters",
        "Where a strategy holds the parameters, cuDNN does not move them into one block.",
    ),
    *patched(
        TORCH, "torch.distributed", "init_process_group destroy_process_group",
        "A cell that makes a process group for DistributedDataParallel has that of the ranks.",
    ),
    *patched(
        TORCH, "torch.distributed.ProcessGroup",
        "allreduce allreduce_coalesced reduce send broadcast allgather allgather_coalesced "
        "allgather_into_tensor_coalesced _allgather_base alltoall alltoall_base gather "
        "reduce_scatter _reduce_scatter_base reduce_scatter_tensor_coalesced scatter",
        COUNTS_BYTES, without=NOT_COUNTED,
    ),
    *patched(
        TORCH, "torch.distributed.ProcessGroup",
        "all_gather_single all_gather_single_coalesced all_to_all_single reduce_scatter_single "
        "reduce_scatter_single_coalesced",
        COUNTS_BYTES, without=NOT_COUNTED, since="2.13",
    ),
    *patched(
        TORCH, "torch.distributed.pipelining.stage._PipelineStageBase", "__init__",
        "A cell that distributes a model by stages beside the strategy is refused.",
    ),
    *patched(
        TORCH, "torch.autograd.profiler.profile", "__init__",
        "With --profile, a profiler that the cell makes has precedence over nbmgpu's.",
    ),
    *patched(
        TORCH, "torch.optim.Optimizer", "step",
        "The strategy, accumulation and clipping act at each step of the cell's optimizers; the "
        "method of each optimizer class is wrapped.",
    ),
    *patched(
        TORCH, "torch.optim.Optimizer", "zero_grad",
        "Gradients stay while they accumulate, and a strategy may hold its own.",
    ),
    *patched(
        TORCH, "torch.nn.utils.clip_grad", "clip_grad_norm_",
        "A sharded strategy computes the norm over all ranks.",
    ),
    *patched(
        TORCH, "torch.optim.lr_scheduler.LRScheduler", "step",
        "Schedulers wait while gradients accumulate; the method of each scheduler class is "
        "wrapped.",
    ),
    *patched(
        TORCH, "torch.amp.GradScaler", "step scale",
        "A GradScaler of the cell is refused beside --accumulate and --precision fp16.",
    ),
    *patched(
        TORCH, "torch.nn.Module", "zero_grad",
        "Gradients stay while they accumulate; under DeepSpeed they are cleared without a gather.",
    ),
    *patched(
        TORCH, "torch.nn.Module", "forward",
        "--checkpointing and --precision act around the forward pass of chosen modules; the "
        "method of their classes is wrapped.",
    ),
    *patched(
        TORCH, "torch.nn.Module", "__call__",
        "FSDP2's pre- and post-forward hooks, and moves of tensors between devices under mp, run "
        "here, so that none is registered on the notebook's modules; --exact finds models here.",
    ),
    *patched(
        TORCH, "torch.nn.Module", "to cuda cpu",
        "Under mp, a move to a GPU spreads the model over all of them.",
    ),
    *patched(
        TORCH, "torch.nn.Module", "_apply",
        "Where a strategy splits parameters, a move to a GPU leaves their values on the host.",
    ),
    *patched(
        TORCH, "torch.nn.functional", "scaled_dot_product_attention dropout",
        "Under sp and cp, attention sees whole sequences, and dropout draws for them.",
    ),
    *patched(
        TORCH, "torch.nn.functional", "batch_norm",
        "Under --exact always, a model runs on some of the samples, and normalizes by statistics "
        "of all.",
    ),
    *patched(
        TORCH, "torch.utils.checkpoint", "_checkpoint_without_reentrant_generator",
        "Under --exact always, activations are recomputed as they were computed.",
    ),
    *patched(
        TORCH, "torch.nn.modules.batchnorm._BatchNorm", "forward",
        "--sync-batchnorm normalizes with the statistics of the global batch.",
    ),
    *patched(
        TORCH, "torch.nn.SyncBatchNorm", "forward",
        "--sync-batchnorm normalizes with the statistics of the global batch.",
    ),
    *patched(
        TORCH, "torch.Tensor", "register_hook",
        "A hook that sees the gradient of one rank's loss alone is reported.",
    ),
    *patched(
        TORCH, "torch.Tensor", "__getitem__",
        "In a watched step with one sample per rank, only its argument tells x[:1] from x.",
    ),
    *patched(
        TORCH, "torch.Tensor", "numpy tolist",
        "No operator reports that values leave torch; a watched step records them here.",
    ),
    *patched(
        TORCH, "torch", "as_tensor from_numpy tensor",
        "No operator reports that values come back to torch; a watched step records them here.",
    ),
    *patched(
        TORCH, "torch.utils.data.DataLoader", "__iter__ __len__",
        "Loaders that a training loop reads are split among the ranks.",
    ),
    *patched(
        TORCH, "torch.random", "fork_rng",
        "Random draws within a fork leave no trace in the generator's state, and are reported.",
    ),
    *patched(
        TORCH, "torch.random", "seed",
        "torch.seed() draws the same seed on every rank.",
    ),
    *patched(
        NUMPY, "numpy.random.bit_generator", "randbits",
        "NumPy's generators without a seed get the same seed on every rank.",
    ),
    *patched(TORCH, "torch", "seed", "torch.seed() draws the same seed on every rank."),
    *patched(TORCH, "torch", "save", "torch.save() writes a file once, on rank 0."),
)  # fmt: skip
