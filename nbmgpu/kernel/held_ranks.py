"""Ranks that this kernel holds since ``%%mgpu --hold``, for its next cells."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbmgpu.engines.registry import get_engine
from nbmgpu.errors import LaunchError, OptionError, format_message
from nbmgpu.formatting import format_bytes
from nbmgpu.options.hold_options import in_held_ranks
from nbmgpu.options.run_options import DEFAULTS, RunOptions
from nbmgpu.runs.held_ranks import are_held
from nbmgpu.serialization import HeldObjects, by_key

from . import notices

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbmgpu.devices.placement import Placement
    from nbmgpu.runs.run import Run

    from .execution import Execution
    from .write_back import RankZeroResult

END_TIMEOUT = 10.0
"""Seconds that ranks have to end."""

ABSENT = object()
"""What a name is bound to in a notebook that does not have it."""

RELEASE = "%mgpu release"


@dataclass(frozen=True)
class HeldRanks:
    """Ranks that wait for the next cell.

    Attributes:
        run: their last run.
        options: that they were started with.
        placement: where they are.
        namespace: the notebook's names.
        number: of bundles that they have loaded.
        objects: the notebook's objects that they hold, by key.
        names: names that only they have, and what the notebook has bound them to.
        versions: how often the notebook had changed each tensor that they hold, by key.
        nbytes: of models and optimizer states in rank 0.
    """

    run: Run
    options: RunOptions
    placement: Placement
    namespace: dict[str, Any] = field(repr=False)
    number: int
    objects: dict[int, Any] = field(repr=False)
    names: dict[str, Any] = field(repr=False)
    versions: dict[int, int] = field(repr=False)
    nbytes: int

    @property
    def alive(self) -> bool:
        """Whether they wait."""
        return are_held(self.run.folder) and not self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether their launcher has ended."""
        self.run.refresh()
        return not self.run.has_launcher

    def to_send(self) -> HeldObjects:
        """Return what the next bundle refers to."""
        return HeldObjects(self.number, self.objects, tuple(self.names))

    def has_own(self, name: str, namespace: dict[str, Any]) -> bool:
        """Return whether the ranks have a value for ``name`` that the notebook has not replaced."""
        return name in self.names and namespace.get(name, ABSENT) is self.names[name]

    def check_unchanged(self) -> None:
        """Check that the notebook has not changed what the ranks hold.

        Raises:
            OptionError: it has, and the ranks do not see it.
        """
        if tensor_versions(self.objects) != self.versions:
            what = "The notebook has changed tensors of a model that its ranks hold"
            allowed = "The ranks go on with their own, which would be lost, or these changes"
            instead = (
                f"{RELEASE} --overwrite for the ranks' model, {RELEASE} --discard for this one"
            )
            raise OptionError(format_message(what, allowed, instead))

    def ignore_changes(self) -> None:
        """Let what the notebook has changed until now be overwritten."""
        self.versions.clear()
        self.versions.update(tensor_versions(self.objects))

    def held_names(self) -> list[str]:
        """Return the names of models and optimizers that the ranks hold."""
        own = {id(obj) for obj in self.objects.values()}
        found = [
            name
            for name, value in self.namespace.items()
            if id(value) in own and (hasattr(value, "param_groups") or hasattr(value, "forward"))
            if not name.startswith("_")
        ]
        return [*found, *self.names]

    def describe(self) -> str:
        """Return what they hold, in a sentence."""
        held = self.held_names()
        names = ", ".join(f"`{name}`" for name in held)
        if not names:
            count = self.placement.world_size
            who = f"{count} ranks wait" if count > 1 else "One rank waits"
            return f"{who} for the next cell, without a model."
        size = f"{format_bytes(self.nbytes)} in rank 0"
        stay, them = ("stay", "them") if len(held) > 1 else ("stays", "it")
        return f"{names} {stay} in the ranks ({size}); the next %%mgpu cell goes on with {them}."

    def end(self) -> None:
        """End the ranks; what they hold is lost.

        Raises:
            LaunchError: they do not end.
        """
        global _held
        _held = None
        get_engine(self.options.engine).hand_on(self.run, None)
        deadline = time.monotonic() + END_TIMEOUT
        while not self.has_ended:
            if time.monotonic() > deadline:
                raise LaunchError(f"The ranks that are held do not end: run {self.run.id}.")
            time.sleep(0.01)


_held: HeldRanks | None = None
_owner = os.getpid()


def current() -> HeldRanks | None:
    """Return the ranks that this process holds.

    Raises:
        LaunchError: they have ended meanwhile; the next call returns None.
    """
    global _held
    if _held is None or _owner != os.getpid():
        return None
    if not _held.alive:
        lost, _held = _held, None
        names = ", ".join(f"`{name}`" for name in lost.held_names())
        what = f"The ranks that were held since run {lost.run.id} have ended: one was killed"
        why = f"{names} in the notebook: as before the cell with --hold" if names else ""
        raise LaunchError(format_message(what, why, "the cell with --hold again"))
    return _held


def waiting() -> HeldRanks | None:
    """Return the ranks that this process holds; None if they have ended."""
    is_here = _held is not None and _owner == os.getpid() and _held.alive
    return _held if is_here else None


def description() -> str:
    """Return what the ranks that wait hold, in a sentence; empty if none wait."""
    held = waiting()
    return "" if held is None else held.describe()


def visible_names(held: HeldRanks | None, namespace: dict[str, Any]) -> dict[str, Any]:
    """Return what a cell may read: the notebook's names, and those that only the ranks have."""
    return namespace if held is None else {**dict.fromkeys(held.names), **namespace}


def names_to_send(
    held: HeldRanks | None, reads: Iterable[str], namespace: dict[str, Any]
) -> dict[str, Any]:
    """Return the names that a cell ``reads``, without those whose value the ranks have."""
    sent = {name: namespace[name] for name in reads if name in namespace}
    if held is None:
        return sent
    return {name: value for name, value in sent.items() if not held.has_own(name, namespace)}


def adopt(options: RunOptions) -> tuple[RunOptions, HeldRanks | None]:
    """Return the options of a cell, and the ranks that it runs in if some are held.

    Raises:
        OptionError: the options are not those of the ranks.
        LaunchError: see ``current``.
    """
    held = None if options.dry_run or options.export else current()
    if held is None:
        return options, None
    held.check_unchanged()
    return in_held_ranks(options, held.options, held.placement.world_size, DEFAULTS), held


def refuse(what: str) -> None:
    """Refuse ``what``, which needs ranks of its own, while some are held.

    Raises:
        OptionError: some are.
    """
    if current() is not None:
        raise OptionError(format_message(f"{what} while ranks are held", instead=RELEASE))


def keep(execution: Execution, result: RankZeroResult | None) -> str:
    """Hold the ranks of a run that is over for the next cells, if they are there.

    Args:
        execution: its results have been written back.
        result: what it has returned; None if that is unknown, and what the ranks hold with it.

    Returns:
        What to tell the user about that; usually nothing.
    """
    global _held
    earlier, _held = execution.held, None
    run, namespace, bundle = execution.run, execution.namespace, execution.bundle
    if are_held(run.folder) and result is None:
        get_engine(execution.options.engine).hand_on(run, None)
    if not are_held(run.folder) or result is None:
        is_later_cell = earlier is not None and execution.options.hold
        return notices.HELD_UNTIL_NOW if is_later_cell else ""
    known = by_key(bundle.originals, bundle.number)
    staying = by_key(dict.fromkeys(result.held), bundle.number)
    objects = {key: known[key] for key in staying}
    names = dict.fromkeys(result.held_names)
    if earlier is not None:
        names |= {n: None for n in earlier.names if earlier.has_own(n, namespace)}
    _held = HeldRanks(
        run,
        execution.options,
        execution.placement,
        namespace,
        bundle.number,
        objects,
        {name: namespace.get(name, ABSENT) for name in names},
        tensor_versions(objects),
        result.held_bytes,
    )
    return notices.HELD.format(_held.describe())


def tensor_versions(objects: dict[int, Any]) -> dict[int, int]:
    """Return autograd's version counter of each tensor among ``objects``, by key."""
    import torch

    return {
        key: obj._version
        for key, obj in objects.items()
        if isinstance(obj, torch.Tensor) and not obj.is_inference()
    }
