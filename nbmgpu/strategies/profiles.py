"""Profiles of the strategies, readable without torch: names, options, needs and costs.

``tools/strategy_table.py`` generates the table in docs/strategies.md from them.
"""

from __future__ import annotations

from dataclasses import replace

from .deepspeed_profile import deepspeed
from .option_support import (
    ALTERNATIVES,
    COMMON_OPTIONS,
    DDP_OPTIONS,
    FSDP_OPTIONS,
    PP_OPTIONS,
    TP_OPTIONS,
    OptionSupport,
)
from .profile import Profile, Requirements

COMPILER_MODULES = ("torch._inductor.compile_fx",)
"""Modules that ``--compile`` imports, which takes seconds."""


DDP = Profile(
    name="ddp",
    summary="every rank holds the model; gradients are averaged as they arrive",
    aliases=(
        "distributed_data_parallel", "ddp_notebook", "ddp_spawn", "ddp_fork", "multi_gpu",
        "multi_cpu", "ddp_find_unused_parameters_true",
    ),
    options=OptionSupport(
        COMMON_OPTIONS | DDP_OPTIONS | {"sync_batchnorm", "exact"},
        handled=DDP_OPTIONS | {"exact"},
        alternatives=ALTERNATIVES,
    ),
    needs="a model that fits one device with gradients and optimizer states",
    saves="nothing: parameters, gradients and states are whole on every rank",
    costs="one all-reduce of the gradients per step, mostly overlapped with the backward pass",
)  # fmt: skip

NONE = Profile(
    name="none",
    summary="ranks with a process group; the cell distributes its own work",
    aliases=("null", "manual"),
    options=OptionSupport(
        frozenset(),
        reasons=dict.fromkeys(
            [*COMMON_OPTIONS, "sync_batchnorm"],
            "none leaves the cell as it is; write it in the cell",
        ),
    ),
    shards_data=False,
    needs="a cell that distributes its own work",
    saves="what the cell saves",
    costs="what the cell costs",
)

DP = Profile(
    name="dp",
    summary="nn.DataParallel: one process copies the model to every GPU at each step",
    aliases=("data_parallel", "dataparallel"),
    options=OptionSupport(
        COMMON_OPTIONS,
        reasons={"sync_batchnorm": "one process computes the statistics of each GPU's part alone"},
        alternatives={"sync_batchnorm": "ddp"},
    ),
    shards_data=False,
    in_one_process=True,
    requirements=Requirements(cuda=True),  # it copies between the devices of a process
    needs="several GPUs in one machine; for teaching",
    saves="nothing; the first GPU holds more than the others",
    costs="a copy of the model to every GPU at each step, in one process: slower than ddp",
)

MP = Profile(
    name="mp",
    summary="one process: layers are spread over all GPUs, which take turns (device_map)",
    aliases=(
        "model_parallel", "naive_model_parallel", "device_map", "device_map_auto",
        "dispatch_model",
    ),
    options=OptionSupport(
        COMMON_OPTIONS - {"compile"},
        reasons={
            "compile": "each graph would end where the next device begins",
            "precision=fp16": "overflows are looked for on one device; bf16 needs no scaling",
            "sync_batchnorm": "its batch statistics are those of the whole batch already",
            "mesh": "it is one process",
        },
        alternatives={
            "compile": "fsdp", "precision=fp16": "ddp", **ALTERNATIVES,
        },
    ),
    shards_data=False,
    in_one_process=True,
    requirements=Requirements(cuda=True),  # it copies between the devices of a process
    needs="several GPUs in one machine; a model whose layers together fit them",
    saves="parameters, gradients, states and activations: about 1/N of all four per GPU",
    costs="one GPU computes at a time, the others wait; activations between them",
)  # fmt: skip

ZERO1 = Profile(
    name="zero1",
    summary="as ddp, and each rank keeps the optimizer states of some of the parameters",
    aliases=("zero_1", "zero_stage_1", "ddp_sharded", "sharded_ddp", "zero_redundancy"),
    options=OptionSupport(
        COMMON_OPTIONS | DDP_OPTIONS | {"sync_batchnorm", "exact"},
        handled=DDP_OPTIONS | {"exact"},
        alternatives=ALTERNATIVES,
    ),
    modules=("torch.distributed.optim",),
    needs="an optimizer that updates each parameter separately (not LBFGS)",
    saves="optimizer states: 1/N of them per rank",
    costs="after each step, an all-gather of the parameters that each rank has updated",
)

FSDP = Profile(
    name="fsdp",
    summary="parameters, gradients and optimizer states are sharded (FSDP2, ZeRO stage 3)",
    aliases=(
        "fsdp2", "zero3", "zero_3", "zero_stage_3", "full_shard", "fully_shard", "fsdp_full_shard",
        "fully_sharded_data_parallel",
    ),
    options=OptionSupport(
        COMMON_OPTIONS | FSDP_OPTIONS | {"sync_batchnorm", "mesh", "exact"},
        handled=FSDP_OPTIONS | {"precision", "mesh", "exact"},
        reasons={"precision=fp16": "its losses are not scaled; bf16 needs no scaling"},
        alternatives={"precision=fp16": "ddp"},
    ),
    requirements=Requirements(torch=(2, 11)),  # it uses private names of FSDP2
    modules=("torch.distributed.fsdp",),
    mesh=("dp", "fsdp"),
    needs="torch 2.11; an optimizer that updates each element separately, or supports DTensor",
    saves="parameters, gradients and states: 1/N of all three per rank",
    costs="an all-gather of each unit's parameters in forward and again in backward",
)  # fmt: skip

TP = Profile(
    name="tp",
    summary="tensor parallelism: each rank holds and computes a part of every layer",
    aliases=("tensor_parallel", "tensor_parallelism", "modelparallelstrategy", "autotp", "auto_tp"),
    options=OptionSupport(
        COMMON_OPTIONS - {"compile"} | {"sync_batchnorm", "mesh"} | TP_OPTIONS,
        handled=TP_OPTIONS | {"mesh"},
        reasons={
            "compile": "its collectives would end each compiled graph",
            "precision=fp16": "its losses are not scaled; bf16 needs no scaling",
        },
        alternatives={"compile": "fsdp", "precision=fp16": "ddp", **ALTERNATIVES},
    ),
    mesh=("dp", "tp"),
    needs="fast links between the ranks; linear layers, embeddings or convolutions",
    saves="parameters, gradients and states of the split layers: 1/N of all three per rank, and "
    "activations inside blocks",
    costs="an all-reduce or all-gather in each split layer, in forward and in backward",
)

PP = Profile(
    name="pp",
    summary="pipeline parallelism: each rank holds some of the layers, and computes them",
    aliases=("pipeline", "pipeline_parallel", "pipeline_parallelism", "gpipe", "pipe"),
    options=OptionSupport(
        COMMON_OPTIONS - {"compile", "checkpointing"} | PP_OPTIONS | {"sync_batchnorm", "mesh"},
        handled=PP_OPTIONS | {"mesh"},
        reasons={
            "compile": "its layers run apart from the model's forward pass",
            "checkpointing": "its layers run apart from the model's forward pass",
            "precision=fp16": "its losses are not scaled; bf16 needs no scaling",
        },
        alternatives={
            "compile": "fsdp", "checkpointing": "fsdp", "precision=fp16": "ddp", **ALTERNATIVES,
        },
    ),
    mesh=("dp", "pp"),
    needs="a sequence of layers (nn.Sequential, nn.ModuleList), at least one for each rank",
    saves="parameters, gradients and states: 1/N of all three per rank; activations of other "
    "ranks' layers",
    costs="activations between neighbours; ranks wait for each other at the start and the end of "
    "each pass",
)  # fmt: skip

SP = Profile(
    name="sp",
    summary="sequence parallelism: each rank computes the layers for a slice of the sequence "
    "(DeepSpeed Ulysses)",
    aliases=("sequence_parallel", "sequence_parallelism", "ulysses", "deepspeed_ulysses", "alst"),
    options=OptionSupport(
        COMMON_OPTIONS - {"compile"} | {"sync_batchnorm", "mesh"},
        handled=frozenset({"mesh"}),
        reasons={"compile": "its collectives would end each compiled graph"},
        alternatives={"compile": "ddp", **ALTERNATIVES},
    ),
    mesh=("dp", "sp"),
    needs="long sequences; layers whose attention is scaled_dot_product_attention; a number of "
    "heads that the ranks divide",
    saves="activations inside of layers: 1/N per rank",
    costs="two all-to-alls of activations in each attention, in forward and in backward; a sum of "
    "the gradients of each layer",
)

CP = replace(
    SP,
    name="cp",
    summary="context parallelism: as sp, but each rank attends with its own queries to all keys",
    aliases=("context_parallel", "context_parallelism", "ring_attention"),
    mesh=("dp", "cp"),
    needs="what sp needs, with any number of heads",
    costs="a gather of keys and values in each attention, and a sum of their gradients; a sum of "
    "the gradients of each layer",
)

FSDP_TP = replace(
    FSDP,
    name="fsdp+tp",
    summary="layers are split over some ranks as under tp, and the parts sharded over others",
    aliases=("2d", "2d_parallel"),
    options=replace(
        FSDP.options,
        supported=FSDP.options.supported - {"compile", "exact"} | {"tp_plan"},
        handled=FSDP.options.handled - {"exact"} | {"tp_plan"},
        reasons={
            **FSDP.options.reasons,
            "compile": TP.options.reasons["compile"],
            "sequence_parallel": "FSDP2's hooks take whole outputs of layers",
        },
        alternatives={
            **FSDP.options.alternatives,
            "compile": "fsdp",
            "exact": "fsdp",
            "sequence_parallel": "tp",
        },
    ),
    mesh=("dp", "fsdp", "tp"),
    default_mesh={"fsdp": 2},
    needs="at least four ranks; fast links between those along tp; what fsdp and tp need",
    saves="parameters, gradients and states of split layers: 1/N of all three per rank, of others "
    "1/F, for F ranks along fsdp; activations inside blocks",
    costs="fsdp's all-gathers, of parts; and tp's collectives in each split layer",
)

HSDP = replace(
    FSDP,
    name="hsdp",
    summary="as fsdp inside groups of ranks, and as ddp between them (hybrid sharding)",
    aliases=("hybrid_shard", "hybrid_sharded_data_parallel", "fsdp_hybrid_shard", "hybrid"),
    default_mesh={"dp": 2},
    needs="what fsdp needs; a slow link between groups of ranks, such as machines",
    saves="parameters, gradients and states: 1/N of all three, for N ranks in a group",
    costs="fsdp's all-gathers inside a group, and one all-reduce of a shard between groups",
)

ZERO2 = replace(
    FSDP,
    name="zero2",
    summary="gradients and optimizer states are sharded (FSDP2 that keeps gathered parameters)",
    aliases=("zero_2", "zero_stage_2", "shard_grad_op", "fsdp_shard_grad_op"),
    needs="what fsdp needs, and memory for all parameters from forward to backward",
    saves="gradients and states: 1/N of both per rank; parameters between steps",
    costs="one all-gather of the parameters per step",
)


SEVERAL_RANKS = replace(
    PP.options,
    supported=PP.options.supported - {"balance"},
    handled=PP.options.handled - {"balance"},
    reasons={**PP.options.reasons, "balance": "layers that several ranks hold do not move"},
)
"""The options of pipelines whose stages have several ranks."""

TP_PP = replace(
    PP,
    name="tp+pp",
    summary="pipeline parallelism whose layers are split over some ranks as under tp",
    aliases=(),
    options=replace(
        SEVERAL_RANKS,
        supported=SEVERAL_RANKS.supported | {"tp_plan"},
        handled=SEVERAL_RANKS.handled | {"tp_plan"},
    ),
    mesh=("dp", "pp", "tp"),
    default_mesh={"pp": 2},
    needs="at least four ranks; fast links between those along tp; what tp and pp need",
    costs="what pp sends between stages; and tp's collectives in each split layer",
)

FSDP_PP = replace(
    PP,
    name="fsdp+pp",
    summary="pipeline parallelism whose stages are sharded over ranks with other samples",
    aliases=(),
    options=SEVERAL_RANKS,
    mesh=("dp", "pp", "fsdp"),
    default_mesh={"pp": 2},
    needs="at least four ranks; what pp needs",
    saves="parameters, gradients and states of the layers: 1/N of all three per rank between "
    "steps; of other modules 1/P, for P ranks along pp",
    costs="what pp sends between stages; an all-gather of a stage's parameters and a "
    "reduce-scatter of its gradients per step",
)

FSDP_TP_PP = replace(
    FSDP_PP,
    name="fsdp+tp+pp",
    summary="pipeline parallelism whose layers are split as under tp, and the parts sharded",
    aliases=("3d", "3d_parallel"),
    options=TP_PP.options,
    mesh=("dp", "pp", "fsdp", "tp"),
    default_mesh={"pp": 2, "fsdp": 2},
    needs="at least eight ranks; fast links between those along tp; what tp and pp need",
    costs="what fsdp+pp costs, for parts; and tp's collectives in each split layer",
)


BUILT_IN = {
    profile.name: profile
    for profile in (
        DDP, ZERO1, ZERO2, FSDP, HSDP, TP, FSDP_TP, PP, TP_PP, FSDP_PP, FSDP_TP_PP, SP, CP,
        deepspeed(1), deepspeed(2), deepspeed(3), deepspeed(2, True), deepspeed(3, True),
        MP, DP, NONE,
    )
}  # fmt: skip
"""The strategies of this package, in the order in which they are shown."""
