"""Idioms of tests/numerics that DeepSpeed's stages refuse, with the reason; none differs."""

from __future__ import annotations

LOOSE = "the optimizer updates tensors that belong to no module"
SPARSE = "DeepSpeed's partitions hold no sparse gradients"
DOUBLE = "DeepSpeed's partitions are float32"
CLOSURE = "LBFGS evaluates its closure several times in a step, and joins all parameters"
OTHERS = "the loss does not reach the same parameters on all ranks, in one order"
TWICE = "under a reentrant checkpoint a parameter gets its gradient twice in one backward pass"
COPIES = "under stage 3 a model that trains cannot be copied: its parameters are partitioned"

COMMON = {
    "learned uncertainties of two tasks": ("refused", LOOSE),
    "bare tensors": ("refused", LOOSE),
    "a bare tensor after break": ("refused", LOOSE),
    "SparseAdam": ("refused", SPARSE),
    "SGD on a sparse embedding": ("refused", SPARSE),
    "LBFGS": ("refused", DOUBLE),
    "LBFGS, strong Wolfe": ("refused", DOUBLE),
    "LBFGS made in the cell": ("refused", DOUBLE),
    "LBFGS on the whole data": ("refused", CLOSURE),
    "a bfloat16 model": ("refused", DOUBLE),
    "a float64 model": ("refused", DOUBLE),
    "class weights in float64": ("refused", DOUBLE),
    "parts of different precision": ("refused", DOUBLE),
    "parameters used for some samples": ("refused", OTHERS),
    "heads in a list, an optimizer each, for parts of a batch": ("refused", OTHERS),
    "checkpoint, reentrant, a layer used twice": ("refused", TWICE),
}

STAGE_3 = COMMON | {
    "the best model, deepcopied": ("refused", COPIES),
    "deepcopies for the inner loop, MAML's first order": ("refused", COPIES),
}

EXCEPTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "deepspeed_stage_1": COMMON,
    "deepspeed_stage_2": COMMON,
    "deepspeed_stage_3": STAGE_3,
    "deepspeed_stage_2_offload": COMMON,
    "deepspeed_stage_3_offload": STAGE_3,
}
