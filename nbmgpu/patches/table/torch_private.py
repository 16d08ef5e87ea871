"""Private names of torch that are used outside the sharded strategies."""

from __future__ import annotations

from typing import Any

from .build import private
from .libraries import ADVISOR, TORCH


def _node(loss: str) -> Any:
    """Return an autograd node of the kind that ``loss`` names."""

    def make() -> Any:
        import torch
        from torch.nn import functional

        x = torch.ones(2, 2, requires_grad=True)
        results = {
            "mean": lambda: x.mean(0),
            "div": lambda: x / x,
            "where": lambda: torch.where(x > 0, x, 0.0),
            "masked": lambda: x.masked_fill(x > 0, 0.0),
            "nll": lambda: functional.nll_loss(x, torch.zeros(2, dtype=torch.long)),
            "select": lambda: x.masked_select(x > 0),
            "index": lambda: x[torch.zeros(1, dtype=torch.long)],
            "packed": lambda: torch.nn.utils.rnn.pack_padded_sequence(x, [2, 2]).data,
        }
        return results[loss]().grad_fn

    return make


def _optimizer() -> object:
    import torch

    return torch.optim.SGD([torch.ones(1)], lr=0.1)


def _scheduled() -> Any:
    """Return an optimizer that a scheduler has wrapped and that has taken a step."""
    import torch

    optimizer: Any = _optimizer()
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    return optimizer


NODE = "torch.autograd.graph.Node"
SENDS_BUCKETS = "zero1 gathers parameters in buckets, not by a broadcast for each."
READS_LOSS = "How a loss averages over samples is read from its autograd graph."

ENTRIES = (
    *private(TORCH, NODE, "_saved_self_sym_sizes _saved_dim", READS_LOSS, example=_node("mean")),
    *private(TORCH, NODE, "_saved_self _saved_other", READS_LOSS, example=_node("div")),
    *private(TORCH, NODE, "_saved_condition", READS_LOSS, example=_node("where")),
    *private(TORCH, NODE, "_saved_mask", READS_LOSS, example=_node("masked")),
    *private(TORCH, NODE, "_saved_indices", READS_LOSS, example=_node("index")),
    *private(TORCH, NODE, "_saved_input_sym_sizes", READS_LOSS, example=_node("packed")),
    *private(
        TORCH, NODE, "_saved_reduction _saved_target _saved_ignore_index _saved_total_weight",
        READS_LOSS, example=_node("nll"),
    ),
    *private(
        TORCH, NODE, "_input_metadata", "The shape that a node computes shows what it averages.",
        example=_node("mean"),
    ),
    *private(
        TORCH, "torch.nn.modules.batchnorm", "_BatchNorm _NormBase",
        "The common base class of batch normalization is public under no other name.",
    ),
    *private(
        TORCH, "torch.nn.modules.batchnorm._BatchNorm", "_check_input_dim",
        "--sync-batchnorm checks its input as torch does.",
    ),
    *private(
        TORCH, "torch.nn.Module",
        "_parameters _buffers _modules _non_persistent_buffers_set",
        "Parameters and buffers are counted and exchanged without calls of overridden methods.",
    ),
    *private(
        TORCH, "torch.nn.Module",
        "_forward_hooks _forward_pre_hooks _backward_hooks _backward_pre_hooks",
        "Hooks of the cell are looked for: they see the gradient of one rank's loss alone.",
    ),
    *private(
        TORCH, "torch.autograd.Variable", "_execution_engine",
        "A pipeline's stage accumulates gradients inside of a backward pass of the cell.",
    ),
    *private(
        TORCH, "torch.nn.Module", "_compiled_call_impl",
        "--compile leaves a model alone that is compiled already, and is undone after the run; a "
        "cell with such a model does not start again, as its calls cannot be divided.",
    ),
    *private(
        TORCH, "torch.Tensor", "_backward_hooks _post_accumulate_grad_hooks",
        "Hooks of the cell on parameters are looked for, and sent along with them.",
    ),
    *private(
        TORCH, "torch.Tensor", "_version _base _use_count _is_view _is_zerotensor _typed_storage",
        "Writes are detected by a tensor's version counter, and views by its base.",
    ),
    *private(
        TORCH, "torch.Tensor", "_make_subclass _make_wrapper_subclass",
        "Tensors are made over memory that exists, or over none.",
    ),
    *private(
        TORCH, "torch.UntypedStorage", "_cdata",
        "A storage is identified by its address, which a wrapper object does not keep.",
    ),
    *private(
        TORCH,
        "torch.cuda",
        "_lazy_call _lazy_seed_tracker",
        "The random state of a GPU is kept and set before CUDA is initialized.",
    ),
    *private(TORCH, "torch._C", "_storage_Use_Count", "Memory that has no other user is reused."),
    *private(
        TORCH, "torch._C", "DisableTorchFunctionSubclass _len_torch_dispatch_stack",
        "Tensor subclasses and dispatch modes step aside for torch's own functions.",
    ),
    *private(
        TORCH, "torch._C", "_set_fp32_precision_setter _get_fp32_precision_getter",
        "The fp32 precision settings of the notebook are set in ranks.",
        without="fp32_precision settings of the notebook do not reach ranks", since="2.9",
    ),
    *private(
        TORCH, "torch._C", "_get_nnpack_enabled",
        "torch has no public getter of this setting of the notebook.",
        without="torch.backends.nnpack.set_flags of the notebook does not reach ranks",
    ),
    *private(
        TORCH, "torch.distributed.optim.ZeroRedundancyOptimizer", "_partition_parameters",
        SENDS_BUCKETS,
    ),
    *private(
        TORCH, "torch", "_foreach_mul_ _foreach_norm _foreach_copy_ _neg_view",
        "One call for many tensors; public functions exist for one tensor only.",
    ),
    *private(
        TORCH, "torch.ops.aten", "_to_copy _unsafe_view _local_scalar_dense",
        "A watched step recognizes operators by name.",
    ),
    *private(
        TORCH, "torch._ops.OpOverload", "_schema _overloadname",
        "A watched step reads which arguments an operator writes to.",
    ),
    *private(
        TORCH, "torch.utils._python_dispatch",
        "TorchDispatchMode _push_mode _pop_mode _get_current_dispatch_mode",
        "A step is watched by a dispatch mode, which steps aside for the cell's own modes.",
    ),
    *private(
        TORCH, "torch.utils._pytree",
        "tree_leaves tree_map tree_map_only tree_structure tree_flatten tree_unflatten TreeSpec "
        "SUPPORTED_NODES",
        "Tensors are found in nested arguments and batches.",
    ),
    *private(
        TORCH, "torch._C._autograd", "_top_saved_tensors_default_hooks",
        "Under pp, a layer inside of a checkpoint runs when it is called.",
    ),
    *private(
        TORCH, "torch._C._distributed_c10d", "_dump_fr_trace",
        "The flight recorder knows the collective that a rank waits in.",
        without="a hang is reported without the shapes of collectives", since="2.9",
    ),
    *private(
        TORCH, "torch._C._functorch", "maybe_current_level",
        "Calls of modules inside of torch.func's transformations are not divided.",
    ),
    *private(
        TORCH, "torch._C._functorch", "is_functorch_wrapped_tensor",
        "A cell that trains on shards by gradients of torch.func starts again.",
    ),
    *private(
        TORCH, "torch._C", "_current_graph_task_id",
        "Under mp, a layer that a checkpoint calls again runs as in the forward pass.",
    ),
    *private(
        TORCH, "torch.nn.RNNBase", "_flat_weights _flat_weights_names",
        "Under pp, a recurrent layer uses this rank's parameters.",
        example=lambda: __import__("torch").nn.RNN(1, 1),
    ),
    *private(
        TORCH, "torch.utils.data._utils.collate", "default_collate default_convert",
        "A user's collate_fn is distinguished from torch's.",
    ),
    *private(
        TORCH, "torch.utils.data.DataLoader", "_iterator",
        "The workers of a loader stay in the notebook.",
    ),
    *private(
        TORCH, "torch.utils.data.dataloader", "_BaseDataLoaderIter",
        "An iterator over a loader is explained where it cannot be pickled.",
    ),
    *private(
        TORCH, "torch", "_tensor_str",
        "Ranks print tensors as the notebook does: torch has no function that returns the options.",
    ),
    *private(
        TORCH, "torch.distributed.distributed_c10d", "_get_default_store",
        "Ranks exchange small values over the store of the process group.",
    ),
    *private(
        TORCH, "torch.optim.Optimizer", "_zero_grad_profile_name",
        "An optimizer's bookkeeping is not sent back to the notebook.", example=_optimizer,
    ),
    *private(
        TORCH, "torch.optim.Optimizer", "_opt_called",
        "A scheduler marks optimizers that it has seen, which pickling drops.",
        example=_scheduled,
    ),
    *private(
        TORCH, "torch.optim.Optimizer.step", "_wrapped_by_lr_sched",
        "A scheduler marks the steps that it has wrapped, which pickling drops.",
        example=lambda: _scheduled().step,
    ),
    *private(
        ADVISOR, "torch._subclasses.fake_tensor", "FakeTensorMode",
        "A training step is measured without memory or time.",
    ),
    *private(
        ADVISOR, NODE, "_sequence_nr",
        "A tensor of a backward pass belongs to the layer whose forward pass made its node.",
        example=_node("mean"),
    ),
    *private(
        ADVISOR, "torch._C", "_current_autograd_node",
        "The layer whose backward pass allocates a tensor is found by the node that runs.",
    ),
    *private(
        ADVISOR, "torch._C._autograd", "_get_sequence_nr",
        "Nodes that a layer makes have the numbers between its beginning and its end.",
    ),
)  # fmt: skip
