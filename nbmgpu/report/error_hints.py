"""Likely causes of common exceptions, and what to try."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nbmgpu.runs.failure import LOST_CONNECTION


@dataclass(frozen=True)
class Hint:
    """The likely cause, in a sentence, and what to try; both may be empty."""

    explanation: str = ""
    remedy: str = ""


SHAPES = Hint("Shapes do not match.", "%mgpu debug, which shows the variables at the line")
SHAPES_OF_SHARDS = Hint(
    "Shapes do not match. Where each rank has a shard of the batch, a number in the cell may be "
    "the size of the whole one.",
    "x.shape[0] or -1 instead of a literal batch size",
)

KNOWN: dict[str, Hint] = {
    r"^(Torch)?OutOfMemoryError|CUDA out of memory": Hint(
        "A GPU is out of memory. Tensors of the notebook's kernel on it count as well.",
        "a strategy that shards memory (--strategy fsdp), --checkpointing, --accumulate 2, or a "
        "smaller batch; %mgpu info shows what the kernel holds",
    ),
    r"^_?(Array)?MemoryError|DefaultCPUAllocator: can't allocate": Hint(
        "The machine has not enough memory for all ranks.",
        "fewer ranks, a smaller batch, or less data in the cell (--dry-run shows the sizes)",
    ),
    r"device-side assert": Hint(
        "Usually an index out of range on the GPU, such as a label beyond the number of classes. "
        "The error is reported asynchronously, so the line may differ.",
        "the same cell with --cpu, which shows the line and the index",
    ),
    r"Target \d+ is out of bounds|index out of range in self": Hint(
        "A label exceeds the model's number of classes, or a token the size of its embedding.",
        "as many outputs (or embedding rows) as the data has values",
    ),
    r"DataLoader worker .* (is killed by signal: Bus|exited unexpectedly)|shared memory\(shm\)":
        Hint(
            "A DataLoader worker ran out of memory, often because /dev/shm is full.",
            "fewer workers (num_workers) in the DataLoader, or more room in /dev/shm",
        ),
    r"No space left on device|Disk quota exceeded": Hint(
        "The disk is full, or /dev/shm, which DataLoader workers use.",
        "free disk space, or num_workers=0 in the DataLoader",
    ),
    r"Expected more than 1 value per channel": Hint(
        "Batch normalization got a single sample, perhaps in the last batch of an epoch.",
        "drop_last=True in the DataLoader, or --sync-batchnorm",
    ),
    r"Expected all tensors to be on the same device": Hint(
        "A tensor is on the CPU, or on another rank's GPU.",
        'device="cuda" in the cell, for the rank\'s own GPU; with --cpu, no "cuda" in it',
    ),
    r"timed? ?out.*(all_?reduce|store|collective|barrier)|Watchdog caught collective": Hint(
        "Ranks waited for one another: one took different steps than the rest.",
        "no branch that depends on the rank around forward, backward or step; the logs of the "
        "ranks show where each was",
    ),
    LOST_CONNECTION: Hint(
        "Another rank ended first; see its log."
    ),
    r"mat1 and mat2 shapes cannot be|size mismatch|must match the size of tensor|target size"
    r"|Expected hidden|is invalid for input of size|Expected input batch_size": SHAPES,
    r"expected scalar type|must have the same dtype|should be the same": Hint(
        "Two tensors differ in their dtype.",
        "the same dtype for both, or --precision bf16 to let autocast choose",
    ),
    r"^Unsupported: ": Hint(  # torch's compiler raises it where no graph may end
        "fullgraph=True allows a single graph, and collectives of the strategy end graphs, as "
        "those of FSDP2 written by hand do; or the model itself has code that ends one.",
        "torch.compile without fullgraph=True, or --strategy ddp",
    ),
    r"^(InternalTorchDynamoError|TorchRuntimeError): ": Hint(
        "torch's compiler could not trace the model, or what the strategy does in it.",
        "torch.compile(model) instead of compiling a function that calls its layers; --strategy "
        "fsdp or ddp; or no torch.compile",
    ),
    r"setStorage: .* out of bounds for storage of size 0": Hint(
        "Under fsdp, parameters are resharded after each module, and a second derivative through "
        "several calls of the model needs them again.",
        "--strategy zero1, or ddp; or a single call of the model",
    ),
    r"autograd.Function with functorch transforms": Hint(
        "torch.func does not support the functions with which fsdp gathers parameters.",
        "--strategy zero1, or ddp",
    ),
    r"resize storage that is not resizable": Hint(
        "A tensor of the notebook is in memory that all ranks share, and cannot grow.",
        "a new tensor in its place; prepare a model for quantization in the cell itself",
    ),
    r"^EOFError: EOF when reading a line": Hint(
        "input() cannot ask here: ranks have no keyboard.",
        "input() in a cell without %%mgpu before this one, and its result as a variable",
    ),
    r"Torch not compiled with CUDA|Found no NVIDIA driver|No CUDA GPUs are available": Hint(
        "The ranks run on CPUs, and the cell asks for a GPU.",
        'device = "cuda" if torch.cuda.is_available() else "cpu", and .to(device)',
    ),
    r"^ModuleNotFoundError": Hint(
        "Ranks run in the notebook's environment, which does not have the module.",
        "%pip install with the name of its package, in a cell of its own",
    ),
    r"^(FileNotFoundError|PermissionError)": Hint(
        "Ranks run in the notebook's folder, as the same user.",
        "an absolute path, if the cell changes the folder",
    ),
}  # fmt: skip
"""Hints by a pattern of type and message; the first match counts."""


def find_hint(type: str, message: str, of_shards: bool = False) -> Hint:
    """Return the hint for an exception, empty if there is none.

    Args:
        type: name of its class.
        message: its text.
        of_shards: whether one device may not raise it.
    """
    text = f"{type}: {message}"
    found = (a for pattern, a in KNOWN.items() if re.search(pattern, text, re.IGNORECASE))
    hint = next(found, Hint())
    return SHAPES_OF_SHARDS if of_shards and hint is SHAPES else hint
