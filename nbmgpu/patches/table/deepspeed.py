"""What the DeepSpeed strategies replace in DeepSpeed, and its private names that they use."""

from __future__ import annotations

from .build import patched, private
from .libraries import DEEPSPEED

BACKWARD = "The engine averages gradients of a backward pass that it has not started itself."
STAGES_1_AND_2 = "deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer"
STAGE_3 = "deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3"


class _Parameters:
    """Has the attributes that DeepSpeed's source assigns to parameters and modules."""

    def __getattr__(self, name: str) -> bool:
        from importlib.util import find_spec
        from pathlib import Path

        spec = find_spec("deepspeed")
        roots = (spec.submodule_search_locations or []) if spec is not None else []
        folders = [Path(root) / part for root in roots for part in ("runtime", "utils")]
        if any(f".{name} " in p.read_text() for f in folders for p in f.rglob("*.py")):
            return True
        raise AttributeError(name)


ENTRIES = (
    *patched(
        DEEPSPEED, "deepspeed.ops", "__compatible_ops__",
        "An operator that would be compiled at the first run (22 s) is marked as unavailable.",
    ),
    *patched(
        DEEPSPEED, "deepspeed", "initialize",
        "A cell that distributes a model by DeepSpeed beside the strategy is refused.",
    ),
    *patched(
        DEEPSPEED, "deepspeed.runtime.engine.DeepSpeedEngine", "_broadcast_model",
        "Ranks have the same parameters; DeepSpeed 0.19 cannot broadcast 0-dimensional ones.",
    ),
    *patched(
        DEEPSPEED, "deepspeed.runtime.zero.partition_parameters.Init", "_zero_init_param",
        "Ranks have the same parameters; DeepSpeed 0.19 cannot broadcast 0-dimensional ones.",
    ),
    *private(
        DEEPSPEED, "deepspeed.runtime.zero.partition_parameters.Init",
        "_convert_to_deepspeed_param",
        "Ranks have the same parameters; DeepSpeed 0.19 cannot broadcast 0-dimensional ones.",
    ),
    *patched(
        DEEPSPEED,
        "deepspeed.runtime.zero.partitioned_param_coordinator.PartitionedParameterCoordinator",
        "fetch_sub_module release_sub_module reset_step",
        "A parameter gathered in torch.inference_mode() must stay usable in the next step.",
    ),
    *patched(
        DEEPSPEED, "deepspeed.runtime.zero.parameter_offload", "FWD_MODULE_STACK",
        "Modules that a failed forward pass has left on the stack are removed.",
    ),
    *private(
        DEEPSPEED, "deepspeed.runtime.engine.DeepSpeedEngine",
        "_running_engine_backward _backward_prologue _backward_epilogue", BACKWARD,
    ),
    *private(
        DEEPSPEED, STAGES_1_AND_2,
        "_epilogue_ran_this_backward _offload_accumulated_param_ids", BACKWARD,
    ),
    *private(
        DEEPSPEED, STAGE_3,
        "_offload_boundary_param_ids _get_param_coordinator _partition_all_parameters", BACKWARD,
    ),
    *private(
        DEEPSPEED, "deepspeed.utils.tensor_fragment", "_hp_mapping",
        "DeepSpeed attaches to each parameter which slice of it this rank has.",
        example=_Parameters,
    ),
    *private(
        DEEPSPEED, "deepspeed.runtime.zero.partition_parameters", "_external_params",
        "DeepSpeed attaches it to modules; it is removed from the notebook's.",
        example=_Parameters,
    ),
    *private(
        DEEPSPEED, "deepspeed.runtime.zero.parameter_offload", "_original_parameters",
        "DeepSpeed attaches it to modules; it is removed from the notebook's.",
        example=_Parameters,
    ),
)  # fmt: skip
