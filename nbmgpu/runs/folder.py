"""The folder of a run: its files, its name, and atomic writes.

Everything about one run of one cell is in ``<runs root>/<run id>/``::

    run.json              the RunRecord; written once, by the kernel
    cell.py               the cell as written
    events/rank-K.jsonl   typed events of rank K (see nbmgpu.runs.events)
    events/rank-K.merged  fewer of them, for readers from the start (see nbmgpu.runs.merged_events)
    events/launcher.jsonl processes of the run, and how they ended
    events/kernel.jsonl   notices of the kernel; events/reference.jsonl of the reference
    logs/rank-K.log       stdout and stderr of rank K; logs/launcher.log and, with --fresh,
                          logs/torchrun.log beside them
    bundle, result-K      data sent through the disk because memory is short; removed at the end
    hang/                 what ranks report when they make no progress (see nbmgpu.runs.stacks)
    post-mortem/rank-K    frames and variables of an exception of rank K, for %mgpu debug
    reference/            gradients of the first steps of each rank, for a process that runs the
                          cell on one device; "ended" once it compares no more (rank.reference)
    checkpoints/          with --checkpoint-every: a folder for each (see nbmgpu.runs.checkpoint)
    undo/                 what was at the paths that the cell has changed (see nbmgpu.runs.undo_log)
    trace_rankK.json.gz   with --profile: what rank K did, for Perfetto
    shadows/rank-K/       files that the cell writes on ranks other than 0; removed at the end
    sockets               link to the folder of the ranks' sockets; removed at the end
    start, cells.json     with --keep-start: what the cell starts from, and the cells before it
    stop                  created to ask the run to stop
    checkpoint            a byte for each checkpoint that ranks were asked for, besides those of
                          a number of steps or epochs
    handling              touched when a SIGINT arrives while the cell handles one
    holding               created when ranks with shards of a model are about to stop together
    collecting            created when rank 0 has finished the cell and writes its result
    collected             created when the kernel has restored the results, or given up
    held/                 with --hold: which ranks wait for the next cell (see runs.held_ranks)
    next                  the folder of the run that goes on with these ranks
    replaced-by           the id of the run that has replaced this one, as a rank was killed or hung
    labels.json           name, tags and note, if they were changed (see nbmgpu.runs.labels)
    line.json             the cached list entry of a run that is over (see nbmgpu.report.digest)

The state of a run follows from its events; nothing is ever rewritten. Kernel, terminal and server
may read a run at any time, independently of each other.
"""

from __future__ import annotations

import datetime
import os
import secrets
from pathlib import Path

from nbmgpu.errors import OptionError, format_message
from nbmgpu.system.ownership import require_own

STOP_FILE = "stop"
CHECKPOINT_REQUEST_FILE = "checkpoint"
HANDLING_FILE = "handling"
HOLDING_FILE = "holding"
INTERRUPT_GRACE = 10.0
"""Seconds that a cell has for handling a KeyboardInterrupt; ``HANDLING_FILE`` is new meanwhile."""

INTERRUPTED_FILE = "interrupted"
"""There once rank 0 has noticed that its cell is interrupted: it ends by itself, if slowly."""

COLLECTING_FILE = "collecting"
COLLECTED_FILE = "collected"
REPLACED_FILE = "replaced-by"
REFERENCE_FOLDER = "reference"
REFERENCE_ENDED = "ended"
REFERENCE_ERROR = "error.txt"
HELD_FOLDER = "held"
NEXT_FILE = "next"
START_FILE = "start"
CELLS_FILE = "cells.json"
POST_MORTEM = "post-mortem"
SHADOWS = "shadows"
SOCKETS = "sockets"

ROOT_VARIABLE = "NBMGPU_RUNS"


def runs_root() -> Path:
    """Return the folder of all runs: ``$NBMGPU_RUNS``, or one in Jupyter's runtime folder.

    Raises:
        OptionError: the variable has a relative path.
    """
    if chosen := os.environ.get(ROOT_VARIABLE):
        if (root := Path(chosen).expanduser()).is_absolute():
            return root
        # The kernel, its ranks and the server would look for it in different folders.
        what, allowed = f"{ROOT_VARIABLE}={chosen} is a relative path", "An absolute path"
        raise OptionError(format_message(what, allowed, f"{ROOT_VARIABLE}={root.absolute()}"))
    from jupyter_core.paths import jupyter_runtime_dir

    return Path(jupyter_runtime_dir()) / "nbmgpu"


def new_run_id() -> str:
    """Return a name that sorts by time and cannot collide in practice.

    To the millisecond: of two runs within a second, the newest must be the later one.  In UTC:
    so it must when the clocks are put back, or the notebook's time zone is another one now.
    """
    now = datetime.datetime.now(datetime.timezone.utc)
    return f"{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03d}{secrets.token_hex(1)}"


def make_run_folder(folder: Path) -> None:
    """Make the folder of a run, and that of all runs, which only their owner can enter.

    Raises:
        OwnershipError: another user has made it before, in a folder that all may write to.
    """
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    require_own(folder)


def post_mortem_path(folder: Path, rank: int) -> Path:
    """Return the file with the frames of an exception of ``rank``."""
    return folder / POST_MORTEM / f"rank-{rank}"


def trace_path(folder: Path, rank: int) -> Path:
    """Return the file with the profile of ``rank``, which Perfetto and chrome://tracing open."""
    return folder / f"trace_rank{rank}.json.gz"


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write ``content`` so that a reader sees all of it or nothing."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    if isinstance(content, bytes):
        beside.write_bytes(content)
    else:
        beside.write_text(content)
    beside.replace(path)
