"""The folder in which ``multiprocessing`` puts its sockets.

DataLoader workers pass tensors through sockets in a temporary folder, which only a worker that
exits by itself removes.  All processes of a run share one folder, which is removed with the run.
"""

from __future__ import annotations

from multiprocessing.process import current_process


def socket_folder() -> str:
    """Return the folder that this process uses; empty if it is Python's default."""
    return str(current_process()._config.get("tempdir", ""))  # type: ignore[attr-defined]


def use_socket_folder(folder: str) -> None:
    """Make this process, and all that ``multiprocessing`` starts below it, put sockets there.

    Args:
        folder: its path; empty for a temporary folder of each process's own, Python's default.
    """
    if folder:
        current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]
