"""What is likely behind an exception, and what to try: for those that leave people puzzled."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nbmgpu.runs.failure import LOST_CONNECTION

TRY = re.compile(r"\s*\bTry: ")


@dataclass(frozen=True)
class Diagnosis:
    """The likely cause in a sentence, and what to try; both may be empty."""

    why: str = ""
    remedy: str = ""


KNOWN: dict[str, Diagnosis] = {
    r"^(Torch)?OutOfMemoryError|CUDA out of memory": Diagnosis(
        "A GPU is full. Tensors that the notebook's kernel holds on it count as well.",
        "a strategy that shares memory (--strategy fsdp), --checkpointing, --accumulate 2, or a "
        "smaller batch; %mgpu info shows what the kernel holds",
    ),
    r"^MemoryError|DefaultCPUAllocator: can't allocate": Diagnosis(
        "The machine has no memory left for all ranks together.",
        "fewer ranks, a smaller batch, or less data in the cell (--dry-run shows the sizes)",
    ),
    r"device-side assert": Diagnosis(
        "Mostly an index out of range on the GPU, such as a label that is no class. It is "
        "reported later than it happens, so the line may be another.",
        "the same cell with --cpu, which shows the line and the index",
    ),
    r"Target \d+ is out of bounds|index out of range in self": Diagnosis(
        "A label is no class of the model, or a token is not in its embedding.",
        "as many outputs (or rows of the embedding) as the data has values",
    ),
    r"DataLoader worker .* (is killed by signal: Bus|exited unexpectedly)|shared memory\(shm\)":
        Diagnosis(
            "A DataLoader's worker had no memory, often because /dev/shm is full.",
            "fewer workers (num_workers) in the DataLoader, or more room in /dev/shm",
        ),
    r"No space left on device": Diagnosis(
        "The disk is full, or /dev/shm, where the workers of a DataLoader meet.",
        "more room where the cell writes, NBMGPU_RUNS=<a folder with room> for what it prints, or "
        "num_workers=0 in the DataLoader",
    ),
    r"Expected more than 1 value per channel": Diagnosis(
        "Batch normalisation got a single sample, as the last batch of an epoch may have.",
        "drop_last=True in the DataLoader, or --sync-batchnorm",
    ),
    r"Expected all tensors to be on the same device": Diagnosis(
        "A tensor was made on the CPU, or on a GPU that is not this rank's.",
        'device="cuda" in the cell, for the rank\'s own GPU; with --cpu, no "cuda" in it',
    ),
    r"timed? ?out.*(all_?reduce|store|collective|barrier)|Watchdog caught collective": Diagnosis(
        "Ranks waited for one another in vain: one did other steps than the rest.",
        "no branch that depends on the rank around forward, backward or step; the logs of the "
        "ranks show where each was",
    ),
    LOST_CONNECTION: Diagnosis(
        "Another rank ended first; its log may tell more."
    ),
    r"mat1 and mat2 shapes cannot be|size mismatch|must match the size of tensor|target size"
    r"|Expected hidden|is invalid for input of size|Expected input batch_size": Diagnosis(
        "Shapes do not fit. Each rank sees its share of the batch only, so sizes that are "
        "written as numbers in the cell may be those of the whole batch.",
        "x.shape[0] or -1 in place of a batch size that is written out",
    ),
    r"expected scalar type|must have the same dtype|should be the same": Diagnosis(
        "Two tensors differ in their dtype.",
        "the same dtype for both, or --precision bf16 to let autocast choose",
    ),
    r"setStorage: .* out of bounds for storage of size 0": Diagnosis(
        "Under fsdp, parameters are given back after each part of a model has run, and a second "
        "derivative through several calls of the model needs them again.",
        "--strategy zero1, or ddp; or one call of the model, whose output is used for both",
    ),
    r"autograd.Function with functorch transforms": Diagnosis(
        "torch.func cannot look into the functions with which fsdp gathers parameters.",
        "--strategy zero1, or ddp",
    ),
    r"resize storage that is not resizable": Diagnosis(
        "A tensor of the notebook lies in memory that all ranks share, and cannot grow there.",
        "a new tensor in its place; a model that is prepared for quantisation in the cell itself",
    ),
    r"^(FileNotFoundError|PermissionError)": Diagnosis(
        "Ranks run in the notebook's folder, as the same user.",
        "an absolute path, if the cell changes the folder",
    ),
}  # fmt: skip
"""Diagnosis by what type and message look like, in the order in which it is looked for."""


def diagnose(type: str, message: str) -> Diagnosis:
    """Return what is known of an exception."""
    text = f"{type}: {message}"
    found = (a for pattern, a in KNOWN.items() if re.search(pattern, text, re.IGNORECASE))
    return next(found, Diagnosis())


def split_remedy(text: str) -> tuple[str, str]:
    """Return a message without what nbmgpu proposes to try, and that."""
    what, *remedy = TRY.split(text, maxsplit=1)
    return what.strip(), remedy[0].strip() if remedy else ""
