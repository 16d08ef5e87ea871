"""TensorBoard: each process writes event files of its own into the folder of a writer.

The notebook's writer is closed before it is sent: TensorBoard reads the files of a folder in the
order of their names, which begin with the time, and does not return to an older one.  A
``SummaryWriter`` opens a new file at its next event by itself.  The writers of ``tensorboardX`` are
made in the same way.
"""

from __future__ import annotations

import importlib
import time
import traceback
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from nbmgpu.patches import PatchStack

from .base import PickledType, RankLogging, Tracker
from .repeated_points import RepeatedPoints

CLOSED = {"file_writer": None, "all_writers": None}
"""Attributes of a ``SummaryWriter`` that is closed."""

COPIES = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
"""The modules that have a ``SummaryWriter``, each with a class ``FileWriter`` that it writes by."""

_opened: list[Any] | None = None
"""In a rank, what writes its event files."""


def reduce_writer(writer: Any) -> Any:
    """Reduce a ``SummaryWriter`` to one that is closed, and goes on with a file of its own.

    The kernel closes its own one as well.  A rank goes on with its file, and closes it at the end:
    what the notebook opens afterwards has a later name.
    """
    if _opened is None:
        with suppress(Exception):  # it has written what it could
            writer.close()
            if hasattr(writer, "_filename_suffix"):
                writer._filename_suffix = _unique_suffix()
    else:
        writer.flush()
        _wait_for_later_name(writer.get_logdir())
    state = {name: value for name, value in vars(writer).items() if name not in CLOSED}
    return _closed_writer, (type(writer),), state


def _closed_writer(kind: Any) -> Any:
    """Return a writer that opens a file at its next event; the state leaves that as it is."""
    writer = kind.__new__(kind)
    writer.__dict__.update(CLOSED)
    return writer


def _wait_for_later_name(folder: str) -> None:
    """Wait, for a second at most, until a file that is opened in ``folder`` is the last by name.

    Names have whole seconds, then the host and the process, whose order says nothing.
    """
    names = (path.name.partition("tfevents.")[2] for path in Path(folder).glob("*tfevents.*"))
    seconds = (name.partition(".")[0] for name in names)
    newest = max((int(second) for second in seconds if second.isdecimal()), default=0)
    if newest == int(time.time()):
        time.sleep(newest + 1 - time.time())


def _unique_suffix() -> str:
    """Return a suffix for a file of tensorboardX, whose names differ by the second alone.

    A second file of that name would replace the first one.
    """
    return f".{uuid.uuid4().hex[:8]}"


def flush_logger(logger: Any) -> None:
    """Close the writer of Lightning's logger, whose own reduction drops it."""
    writer = vars(logger).get("_experiment")
    if writer is None or not hasattr(writer, "close"):
        return
    if _opened is None:
        writer.close()
    else:
        _wait_for_later_name(writer.get_logdir())


class TensorBoard(Tracker):
    """``SummaryWriter``, of torch and of tensorboardX."""

    library = "tensorboard"
    patched = COPIES
    pickled = (
        PickledType("torch.utils.tensorboard", "SummaryWriter", reduce_writer, True),
        PickledType("tensorboardX", "SummaryWriter", reduce_writer, True),
        PickledType("lightning", "TensorBoardLogger", flush_logger),
        PickledType("pytorch_lightning", "TensorBoardLogger", flush_logger),
    )

    def begin(self, rank: RankLogging) -> None:
        """Close at the end what the cell has opened."""
        global _opened
        _opened = []
        rank.at_exit.append(_close)

    def install(self, module: Any, rank: RankLogging) -> None:
        """Let ``SummaryWriter`` write by a class that writes on rank 0 alone."""
        plain = module.FileWriter
        file_writer = type("FileWriter", (_RankFileWriter, plain), {"rank": rank})
        PatchStack().replace("torch.utils.tensorboard.writer.FileWriter", file_writer, module)


def _close(exit_code: int) -> None:
    """Close what writes this rank's event files: their threads end with the process."""
    for file_writer in _opened or ():
        try:
            file_writer.close()
        except Exception:
            traceback.print_exc()


class _RankFileWriter:
    """Writes the events of one folder, on rank 0 alone."""

    rank: RankLogging

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._silent = self.rank.silent
        self._log_dir = str(args[0] if args else kwargs.get("log_dir", kwargs.get("logdir")))
        self._repeated: RepeatedPoints | None = None
        if not self._silent:
            if (since := self.rank.resumed_from) is not None:
                self._repeated = RepeatedPoints(lambda: _points(self._log_dir, since), self.rank)
                self._repeated.read()  # before this process has a file there
            _wait_for_later_name(self._log_dir)
            if "filename_suffix" in kwargs:
                kwargs["filename_suffix"] = _unique_suffix()
            super().__init__(*args, **kwargs)
            assert _opened is not None
            _opened.append(self)
            self.rank.writes_tensorboard(self._log_dir)

    def get_logdir(self) -> str:
        return self._log_dir

    def add_event(self, event: Any, *args: Any, **kwargs: Any) -> None:
        if self._silent:
            return
        step = args[0] if args else kwargs.get("step")
        if self._repeated is not None and event.HasField("summary"):
            number = 0 if step is None else int(step)
            kept = [v for v in event.summary.value if not self._repeated.has((v.tag, number))]
            if not kept:
                return
            del event.summary.value[:]
            event.summary.value.extend(kept)
        super().add_event(event, *args, **kwargs)  # type: ignore[misc]

    def flush(self) -> None:
        if not self._silent:
            super().flush()  # type: ignore[misc]

    def close(self) -> None:
        if not self._silent:
            super().close()  # type: ignore[misc]

    def reopen(self) -> None:
        if not self._silent:
            super().reopen()  # type: ignore[misc]


def _points(folder: str, since: float) -> tuple[list[Any], list[Any]]:
    """Return tag and step of the points in a folder, those before and after a time."""
    loaders: Any = importlib.import_module("tensorboard.backend.event_processing.event_file_loader")
    before: list[Any] = []
    after: list[Any] = []
    for path in sorted(Path(folder).glob("*tfevents*")):
        with suppress(Exception):  # the end of a file may be missing: its process was killed
            for event in loaders.LegacyEventFileLoader(str(path)).Load():
                points = after if event.wall_time > since else before
                points += [(value.tag, event.step) for value in event.summary.value]
    return before, after
