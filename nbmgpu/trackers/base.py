"""What nbmgpu needs to know of an experiment tracker, and what a tracker knows of its rank."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class PickledType:
    """A type of a tracker's library, and how its objects are sent to another process.

    Attributes:
        package, name: the class has this name, in a module whose name begins with ``package``.
            The library need not be imported for that.
        reduce: returns what ``__reduce_ex__`` would, or None for the default.
        with_subclasses: whether subclasses of the class, such as those of a notebook, are meant.
    """

    package: str
    name: str
    reduce: Callable[[Any], Any]
    with_subclasses: bool = False

    def matches(self, kind: type) -> bool:
        """Return whether objects of type ``kind`` are meant."""
        kinds = kind.__mro__ if self.with_subclasses else (kind,)
        return any(k.__name__ == self.name and k.__module__.startswith(self.package) for k in kinds)


@dataclass(frozen=True)
class NotebookTrackers:
    """What the notebook has begun to log to, as the kernel sends it to the ranks.

    Attributes:
        begun: by the name of the tracker, what another process needs to go on with the
            notebook's run; without those that the notebook has not imported or begun.
        muted: whether the cell logs nothing at all, as in comparisons.
    """

    begun: Mapping[str, Any] = field(default_factory=dict)
    muted: bool = False


@dataclass
class RankLogging:
    """A rank as its trackers see it.

    Attributes:
        rank: of this process.
        shards_data: whether ranks are to act as one process.  Otherwise each one logs for itself.
        broadcast: returns the value of rank 0's call with the same name and number.
        own_files: a context in which a library writes its own files, on every rank.
        may_restart: whether the cell may still start again from its beginning.
        is_resuming: whether a resumed cell has not come to its checkpoint yet.
        resumed_from: when the checkpoint was written that the cell resumes, in seconds since the
            epoch; None if it resumes none.
        notebook: what the notebook logs to; None until the rank has received it.
        leaving: by the name of the tracker, returns how the cell has left the notebook's run.
        writes_tensorboard: called with each folder into which the rank writes event files.
        at_exit: called with the exit code of the cell, after its results have been saved.
        is_muted: whether this process logs nothing, whatever the notebook does.
    """

    rank: int = 0
    shards_data: bool = False
    broadcast: Callable[[str, Any], Any] = lambda name, value: value
    own_files: Callable[[], AbstractContextManager[None]] = nullcontext
    may_restart: Callable[[], bool] = lambda: False
    is_resuming: Callable[[], bool] = lambda: False
    resumed_from: float | None = None
    notebook: NotebookTrackers | None = None
    writes_tensorboard: Callable[[str], None] = lambda folder: None
    leaving: dict[str, Callable[[], Any]] = field(default_factory=dict)
    at_exit: list[Callable[[int], None]] = field(default_factory=list)
    is_muted: bool = False
    _waiting: list[Callable[[], None]] = field(default_factory=list)

    @property
    def muted(self) -> bool:
        """Whether no rank logs anything."""
        return self.is_muted or (self.notebook is not None and self.notebook.muted)

    @property
    def silent(self) -> bool:
        """Whether this rank logs nothing."""
        return self.muted or (self.shards_data and self.rank > 0)

    def begun(self, tracker: str) -> Any:
        """Return what the notebook has recorded of its run; None if there is none."""
        return None if self.notebook is None else self.notebook.begun.get(tracker)

    def receive(self, notebook: NotebookTrackers) -> None:
        """Set what the notebook logs to."""
        self.notebook = notebook
        while self._waiting:
            self._waiting.pop(0)()

    def once_received(self, call: Callable[[], None]) -> None:
        """Call once ``notebook`` is known: libraries may be imported before and after that."""
        if self.notebook is None:
            self._waiting.append(call)
        else:
            call()

    def rank_0s(self, name: str, make: Callable[[], T], otherwise: T) -> T:
        """Return what rank 0 makes; a rank that is muted or alone gets ``otherwise`` or its own."""
        if self.muted:
            return otherwise
        own = make() if self.rank == 0 or not self.shards_data else otherwise
        value: T = self.broadcast(name, own) if self.shards_data else own
        return value

    def left(self) -> dict[str, Any]:
        """Return how the cell has left the notebook's runs, by tracker."""
        states = {}
        for name, leaving in self.leaving.items():
            try:
                states[name] = leaving()
            except Exception:  # of the library: the results are sent all the same
                traceback.print_exc()
        return {name: state for name, state in states.items() if state is not None}


class Tracker:
    """A library that logs experiments.

    Every method may be called where the notebook does not use the library: nothing imports it.

    Attributes:
        library: the name of its top-level module.
        patched: modules after whose import ``install`` is called in a rank.
        pickled: its types that are sent in a way of their own.
        stateless: beginnings of module names; what objects of these modules hold is the
            library's own, and is not written back.
        silencing: environment variables of ranks that log nothing.
    """

    library = ""
    patched: tuple[str, ...] = ()
    pickled: tuple[PickledType, ...] = ()
    stateless: tuple[str, ...] = ()
    silencing: ClassVar[Mapping[str, str]] = {}

    def capture(self, library: Any) -> Any:
        """In the kernel: return what another process needs to go on with the notebook's run.

        Args:
            library: the module, which the notebook has imported.

        Returns:
            Something that can be unpickled without the library; None if no run has begun.
        """
        return None

    def write_back(self, library: Any, left: Any) -> None:
        """In the kernel: let the notebook's run be as the cell has left it."""

    def begin(self, rank: RankLogging) -> None:
        """In a rank: prepare to receive the notebook's objects."""

    def install(self, module: Any, rank: RankLogging) -> None:
        """In a rank: let rank 0 log for all; ``module`` is one of ``patched``."""
