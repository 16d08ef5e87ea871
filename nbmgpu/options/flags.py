"""The flags of ``%%mgpu``: one table for the parser, Tab completion and help."""

from __future__ import annotations

from nbmgpu.runs.checkpoint import NEWEST

from . import checkpoint_options, model_parallelism, values
from .flag_table import Flag, FlagTable

COMMANDS = {
    "runs": "list the runs, newest first",
    "show": "show one run: its state, curves, notices and folder",
    "attach": "follow a run here, and write its results back",
    "stop": "stop a run; a second time, kill it without its results",
    "info": "show devices, versions and what is missing; --patches: what is replaced in libraries",
    "advise": "recommend a strategy for a model: %mgpu advise model optimizer loader",
    "pick": "choose a strategy from a table of memory and speed",
}
"""The subcommands of the line magic ``%mgpu``."""

INFO_OPTIONS = ("--patches",)
"""Options of ``%mgpu info``."""


FLAGS = (
    Flag(
        "--strategy",
        "strategy",
        "how the ranks share the training (default: ddp)",
        short="-s",
        metavar="NAME",
        validate=values.validate_strategy,
        completions=values.known_strategies,
    ),
    Flag(
        "--gpus",
        "gpus",
        "how many, or which by index (default: all; without any, 2 CPU ranks)",
        short="-g",
        metavar="N|all|0,2",
        validate=values.validate_gpus,
        completions=lambda: ("all",),
        several=True,
    ),
    Flag("--cpu", "cpu", "run on CPU ranks with gloo, whatever GPUs there are"),
    Flag(
        "--batch",
        "batch",
        "whether the batch size in the cell is global (default) or per rank",
        metavar="global|per-rank",
        validate=values.validate_batch,
        completions=lambda: ("global", "per-rank"),
    ),
    Flag(
        "--seed",
        "seed",
        "seed every rank's random generators",
        metavar="N",
        validate=values.validate_seed,
        completions=lambda: ("0", "42"),
    ),
    Flag(
        "--pull",
        "pull",
        "write back only these names (default: all that the cell assigns)",
        metavar="NAMES",
        validate=values.validate_pull,
        several=True,
    ),
    Flag(
        "--no-pull",
        "pull",
        "write back no names; objects are still updated in place",
        validate=values.validate_pull,
        constant=(),
    ),
    Flag("--background", "background", "return at once; write results back when the run ends"),
    Flag(
        "--timeout",
        "timeout",
        "stop the run after this many seconds",
        metavar="SECONDS",
        validate=values.validate_timeout,
        completions=lambda: ("600", "3600"),
    ),
    Flag(
        "--on-hang",
        "on_hang",
        "when no rank makes progress: say where each one waits (default), or also end the run, "
        "or start it again (see --max-restarts)",
        metavar="warn|stop|restart",
        validate=values.validate_on_hang,
        completions=lambda: ("warn", "stop", "restart"),
    ),
    Flag(
        "--hang-after",
        "hang_after",
        "seconds without progress that count as a hang (default: 60)",
        metavar="SECONDS",
        validate=values.validate_hang_after,
        completions=lambda: ("60", "10m"),
    ),
    Flag(
        "--steps",
        "steps",
        "end the cell after this many optimizer steps",
        metavar="N",
        validate=values.validate_steps,
        completions=lambda: ("20", "100"),
    ),
    Flag(
        "--checkpoint-every",
        "checkpoint_every",
        "write checkpoints, from which --resume goes on",
        metavar="10m|500steps|epoch",
        validate=checkpoint_options.validate_checkpoint_every,
        completions=lambda: ("10m", "500steps", "epoch"),
    ),
    Flag(
        "--keep",
        "keep",
        "how many checkpoints to keep, the newest (default: 3)",
        metavar="N",
        validate=checkpoint_options.validate_keep,
        completions=lambda: ("1", "3"),
    ),
    Flag(
        "--resume",
        "resume",
        "go on at the last checkpoint of this cell, or of another run",
        metavar="[RUN]",
        validate=checkpoint_options.validate_resume,
        constant=NEWEST,
        optional_value=True,
    ),
    Flag(
        "--max-restarts",
        "max_restarts",
        "start again from the newest checkpoint if a rank is killed (default: 0)",
        metavar="N",
        validate=checkpoint_options.validate_max_restarts,
        completions=lambda: ("1", "3"),
    ),
    Flag("--dry-run", "dry_run", "start nothing; show what would be sent and written back"),
    Flag("--fresh", "fresh", "start the ranks with torchrun in new processes (slower)"),
    Flag(
        "--engine",
        "engine",
        "where ranks run (default: local, this machine)",
        metavar="NAME",
        validate=values.validate_engine,
        completions=values.known_engines,
    ),
    Flag(
        "--accumulate",
        "accumulate",
        "take an optimizer step every N batches",
        metavar="N",
        validate=values.validate_accumulate,
        completions=lambda: ("2", "4", "8"),
    ),
    Flag(
        "--precision",
        "precision",
        "what the forward pass computes in (default: as the cell says)",
        metavar="bf16|fp16|fp32",
        validate=values.validate_precision,
        completions=lambda: ("bf16", "fp16", "fp32"),
    ),
    Flag("--compile", "compile", "compile the model with torch.compile"),
    Flag(
        "--clip",
        "clip",
        "clip the gradients' norm before each step",
        metavar="NORM",
        validate=values.validate_clip,
        completions=lambda: ("1.0",),
    ),
    Flag(
        "--exact",
        "exact",
        "let the cell see whole batches: where its numbers would differ (default), or always",
        metavar="auto|always|never",
        validate=values.validate_exact,
        completions=lambda: ("always", "never", "auto"),
    ),
    Flag("--checkpointing", "checkpointing", "recompute activations in the backward pass"),
    Flag("--sync-batchnorm", "sync_batchnorm", "compute batch statistics over the global batch"),
    Flag(
        "--find-unused",
        "find_unused",
        "allow parameters that a loss does not use (ddp, zero1; never needed)",
    ),
    Flag("--static-graph", "static_graph", "every loss uses the same parameters (ddp, zero1)"),
    Flag(
        "--bucket-views",
        "bucket_views",
        "gradients are views of their communication buckets (ddp, zero1)",
    ),
    Flag(
        "--compress",
        "compress",
        "reduce gradients in a smaller dtype (ddp, zero1)",
        metavar="bf16|fp16",
        validate=values.validate_compress,
        completions=lambda: ("bf16", "fp16"),
    ),
    Flag(
        "--fsdp-units",
        "fsdp_units",
        "module classes to shard separately (fsdp, hsdp, zero2; default: automatic)",
        metavar="CLASSES",
        validate=values.validate_classes,
        several=True,
    ),
    Flag(
        "--mesh",
        "mesh",
        "sizes of the device mesh by dimension (dp, fsdp, tp, pp, sp, cp)",
        metavar="dp=2,tp=2",
        validate=model_parallelism.validate_mesh,
        several=True,
    ),
    Flag(
        "--microbatches",
        "microbatches",
        "run a batch through the stages in so many parts (pp; default: two per rank)",
        metavar="N",
        validate=values.validate_microbatches,
        completions=lambda: ("1", "4", "8"),
    ),
    Flag(
        "--schedule",
        "schedule",
        "order of the stages (pp; default: gpipe)",
        metavar="gpipe|interleaved",
        validate=values.validate_schedule,
        completions=lambda: ("gpipe", "interleaved"),
    ),
    Flag(
        "--split-points",
        "split_points",
        "layers that begin a stage (pp; default: stages with as many parameters)",
        metavar="layers.4,layers.8",
        validate=model_parallelism.validate_split_points,
        several=True,
    ),
    Flag(
        "--balance",
        "balance",
        "what stages have about the same of (pp; default: parameters)",
        metavar="parameters|time",
        validate=values.validate_balance,
        completions=lambda: ("parameters", "time"),
    ),
    Flag(
        "--tp-plan",
        "tp_plan",
        "how layers are split: a dict in the notebook, or words (tp; default: found)",
        metavar="plan|layers.*.fc1=colwise",
        validate=model_parallelism.validate_tp_plan,
        several=True,
        completions=lambda: ("auto",),
    ),
    Flag(
        "--sequence-parallel",
        "sequence_parallel",
        "split the sequence between split layers: norms, dropout, residual additions (tp)",
    ),
    Flag("--cpu-offload", "cpu_offload", "keep shards in host memory (fsdp, hsdp, zero2)"),
    Flag(
        "--deepspeed-config",
        "deepspeed_config",
        "your own DeepSpeed configuration (deepspeed_...)",
        metavar="FILE",
        validate=values.validate_path,
    ),
)
"""Every flag of ``%%mgpu``, in the order in which help shows them."""


RUN = FlagTable("%%mgpu", FLAGS)
"""The flags of ``%%mgpu``."""
