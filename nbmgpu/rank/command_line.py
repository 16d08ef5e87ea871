"""The command line of a rank in a new process: ``python -m nbmgpu.rank <run folder>``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nbmgpu.system.library_files import libraries_of
from nbmgpu.system.worker_sockets import use_socket_folder

from .rank_environment import RankEnvironment


@dataclass(frozen=True)
class RankCommand:
    """How to start a rank.

    Attributes:
        arguments: of Python.
        variables: environment variables that Python needs at its start, besides ``RANK`` and
            ``WORLD_SIZE``.  The rank gives them back their original values before the cell runs.
    """

    arguments: list[str]
    variables: dict[str, str]


def rank_command(
    folder: Path, init_method: str = "env://", interface: str = "", socket_folder: str = ""
) -> RankCommand:
    """Return how to start a rank of the run in ``folder``.

    Args:
        folder: the run folder, as the rank sees it.
        init_method, interface: see ``RankEnvironment``.
        socket_folder: a folder with a short path for sockets of DataLoader workers, which the
            engine removes; empty for a temporary folder of each process.
    """
    variables, restored = start_variables()
    arguments = [
        *("-m", "nbmgpu.rank", str(folder)),
        *(f"--init-method={init_method}", f"--interface={interface}"),
        *(f"--socket-folder={socket_folder}", f"--restore-variables={restored}"),
    ]
    return RankCommand(arguments, variables)


def start_variables(python: str = "") -> tuple[dict[str, str], str]:
    """Return variables that Python needs at its start, and what ``restore_variables`` takes.

    Args:
        python: the interpreter, which has libraries of its own; empty for that of this process.
    """
    others = libraries_of(sys.path) if python not in ("", sys.executable) else []
    variables = {
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p and p not in others),
        "PYTHONSAFEPATH": "1",  # else the notebook's folder would be before Python's own
        # Sets of strings must have the same order on all ranks: what is made of them is paired.
        "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),
    }
    return variables, json.dumps({name: os.environ.get(name) for name in variables})


def restore_variables(values: str) -> None:
    """Give variables the values that they had in the kernel.

    Args:
        values: by name, as JSON; null removes a variable.
    """
    for name, value in json.loads(values).items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def parse(arguments: Sequence[str] | None = None) -> tuple[Path, RankEnvironment]:
    """Return the run folder and the environment of this rank; restore environment variables.

    Args:
        arguments: by default those of the command line.
    """
    parser = argparse.ArgumentParser(
        prog="python -m nbmgpu.rank",
        description="Run one rank of a run.  Its position is read from the environment variables "
        "RANK, WORLD_SIZE and, with several machines, LOCAL_RANK and others as torchrun sets them.",
    )
    parser.add_argument("folder", type=Path, help="the run folder")
    parser.add_argument(
        "--init-method", default="env://", help="rendezvous, such as tcp://host:port"
    )
    parser.add_argument("--interface", default="", help="network interface for gloo and NCCL")
    parser.add_argument("--socket-folder", default="", help="for sockets of DataLoader workers")
    parser.add_argument(
        "--restore-variables",
        default="{}",
        help="environment variables to set before the cell runs, as JSON; null removes one",
    )
    given = parser.parse_args(arguments)
    use_socket_folder(given.socket_folder)
    restore_variables(given.restore_variables)
    environment = RankEnvironment.from_variables(
        os.environ, given.init_method, given.interface, parent=os.getppid()
    )
    return given.folder, environment
