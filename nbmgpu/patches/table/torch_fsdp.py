"""Private names of FSDP2 that ``--strategy fsdp`` and ``zero2`` use or override."""

from __future__ import annotations

from .build import patched, private
from .libraries import FSDP
from .torch_private import _optimizer

INTERNALS = "torch.distributed.fsdp._fully_shard"
SHOWS = "FSDP2 shows modules the notebook's own parameters; it has no public setting for that."
DISABLES = (
    "FSDP2 excludes it from compilation anew in each call, which takes 10 us of Python's time."
)

RECORDS = "FSDP2 names each of its phases for a profiler, which takes 10 us, also without one."

ENTRIES = (
    *patched(
        FSDP, "torch.nn.Parameter", "__class__",
        "A parameter of the notebook gets a subclass while FSDP2 or DeepSpeed shards it.",
    ),
    *patched(
        FSDP, "torch.Tensor", "__class__",
        "A tensor that shares memory with a sharded parameter gets a subclass.",
    ),
    *patched(
        FSDP, "torch.nn.Module", "__class__",
        "fully_shard gives modules a subclass; the notebook's get their own class back.",
    ),
    *private(
        FSDP, "torch.distributed._composable.contract", "REGISTRY_KEY STATE_KEY",
        "What fully_shard leaves on modules is removed from the notebook's.",
    ),
    *private(
        FSDP, f"{INTERNALS}._fsdp_common", "is_bw TrainingState",
        "Hooks behave differently in backward passes.",
    ),
    *private(
        FSDP, f"{INTERNALS}._fsdp_param", "FSDPParam", f"{SHOWS} Its instances get a subclass."
    ),
    *private(
        FSDP, f"{INTERNALS}._fsdp_param.FSDPParam",
        "_setattr_on_modules _unsharded_param _module_info _post_load_hook_handle", SHOWS,
    ),
    *private(
        FSDP, f"{INTERNALS}._fsdp_param_group", "FSDPParamGroup",
        f"{SHOWS} Its instances get a subclass.",
    ),
    *private(
        FSDP, f"{INTERNALS}._fsdp_param_group.FSDPParamGroup",
        "_register_state_dict_hooks _to_sharded _init_mp_dtypes _post_forward_indices "
        "_training_state", SHOWS,
    ),
    *private(
        FSDP, f"{INTERNALS}._fsdp_state.FSDPState",
        "_pre_forward_hook_handle _post_forward_hook_handle _fsdp_param_group _lazy_init "
        "_state_ctx _comm_ctx _training_state _modules _mp_policy",
        "Its hooks run around nn.Module.__call__ instead of on the notebook's modules.",
    ),
    *patched(FSDP, f"{INTERNALS}._fsdp_param_group", "record_function", RECORDS),
    *private(FSDP, "torch.autograd", "_profiler_enabled", RECORDS),
    *patched(
        FSDP, f"{INTERNALS}._fsdp_state.FSDPState",
        "_pre_forward _post_forward _pre_backward _root_post_backward_final_callback", DISABLES,
    ),
    *patched(
        FSDP, f"{INTERNALS}._fsdp_param_group.FSDPParamGroup", "pre_backward post_backward",
        DISABLES,
    ),
    *private(
        FSDP, "torch.distributed.utils", "_apply_to_tensors",
        "Outputs of a module are copied where FSDP2 would warn of views.",
    ),
    *private(
        FSDP, "torch.distributed.tensor.DTensor", "_local_tensor",
        "A rank's shard of a DTensor is measured without a collective.",
    ),
    *private(
        FSDP, "torch", "_amp_foreach_non_finite_check_and_unscale_",
        "A GradScaler unscales the shards of gradients.",
    ),
    *private(
        FSDP, "torch.optim.Optimizer",
        "_patch_step_function _optimizer_step_pre_hooks _optimizer_step_post_hooks "
        "_optimizer_state_dict_pre_hooks _optimizer_state_dict_post_hooks "
        "_optimizer_load_state_dict_pre_hooks _optimizer_load_state_dict_post_hooks",
        "An optimizer's bookkeeping is separated from its settings when its step runs on shards.",
        example=_optimizer,
    ),
    *private(
        FSDP, "torch.optim.Optimizer", "_warned_capturable_if_run_uncaptured",
        "An optimizer's bookkeeping is separated from its settings when its step runs on shards.",
        example=_optimizer,
    ),
    *private(
        FSDP, "torch.optim.Adagrad", "_need_device_dtype_check_for_fused",
        "An optimizer's bookkeeping is separated from its settings when its step runs on shards.",
    ),
    *private(
        FSDP, "torch.optim.Adagrad", "_step_supports_amp_scaling",
        "An optimizer's bookkeeping is separated from its settings when its step runs on shards.",
        since="2.12",
    ),
)  # fmt: skip
