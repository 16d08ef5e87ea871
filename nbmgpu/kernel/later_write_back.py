"""Writes the results of a run into a kernel that has not started it.

The kernel that has started it is gone, and its objects with it.  So bundle and results are opened
here, which gives the objects as they were sent, trained.  Their state is copied into the objects
of the same names, where this notebook has all of them; else the names are bound to the new objects.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbmgpu.cell.loop_targets import loop_targets
from nbmgpu.engines.registry import get_engine
from nbmgpu.options.run_options import RunOptions
from nbmgpu.runs.folder import COLLECTED_FILE
from nbmgpu.runs.run import Run
from nbmgpu.serialization import VALUE
from nbmgpu.serialization.reopened_bundle import reopen_bundle

from .write_back import WriteBack

IN_PLACE = "updated in place: {names}"
BOUND = "new: {names}"
MISSING = (
    "This notebook has no {missing} like that of the run. Models and optimizers belong together, "
    "so new objects are bound to {names}; what else refers to the former ones keeps them"
)


@dataclass(frozen=True)
class LaterWriteBack:
    """Writes the results of ``run``, which is over, into ``namespace``.

    Attributes:
        run: a run whose kernel is gone, and which may have outlived it.
        namespace: the notebook's names.
        texts: what to tell the user; filled by ``apply``.
    """

    run: Run
    namespace: dict[str, Any]
    texts: list[str] = field(default_factory=list)

    @property
    def is_due(self) -> bool:
        """Whether the results are there, and no other kernel has them or waits for them."""
        run = self.run
        options = run.record.options
        if not get_engine(options.engine, options.detached).outlives_kernel or run.to_collect:
            return False
        return run.has_uncollected_files

    def apply(self) -> None:
        """Write them, and remove the files.

        Raises:
            ResultsError: the cell ran to its end, and its results are lost.
            SerializationError: what was sent cannot be opened here; the files stay.
        """
        run, there = self.run, dict(self.namespace)
        bundle = reopen_bundle(run.record.storage.bundle, run.id, there)
        sent = dict(bundle.values)
        options = RunOptions(**run.record.options.values)
        notice = lambda _, text: self.texts.append(text)  # noqa: E731
        WriteBack(run, bundle, there, options, _loop_targets(run.cell), notice).apply()
        if (results := run.results.get(0)) is None:  # what was sent is as it was: not a result
            return
        bound = {n: v for n, v in results.items() if n != VALUE and sent.get(n) is not v}
        updated = self._update({n: v for n, v in sent.items() if n not in bound})
        self.namespace.update(bound)
        self._tell(IN_PLACE, updated)
        self._tell(BOUND, list(bound))
        self._remove_files()

    def _update(self, sent: dict[str, Any]) -> list[str]:
        """Give the notebook's objects the state of those that were sent; return their names."""
        stateful = {name: value for name, value in sent.items() if _has_state(value)}
        contents = [n for n, v in sent.items() if n not in stateful and self._take_contents(n, v)]
        others = [name for name, value in stateful.items() if not self._fits(name, value)]
        if others:
            self.namespace.update(stateful)
            self.texts.append(MISSING.format(missing=_quoted(others), names=_quoted([*stateful])))
            return contents
        # Modules first: an optimizer's states are moved to where its parameters are.
        for name in sorted(stateful, key=lambda name: _is_optimizer(stateful[name])):
            self.namespace[name].load_state_dict(stateful[name].state_dict())
        return [*stateful, *contents]

    def _fits(self, name: str, value: Any) -> bool:
        """Return whether the notebook's object can take the state of ``value``."""
        own = self.namespace.get(name)
        return type(own).__qualname__ == type(value).__qualname__ and _shape(own) == _shape(value)

    def _take_contents(self, name: str, value: Any) -> bool:
        """Copy the contents of a list, dict, set or tensor, or bind a name that is missing."""
        import torch

        if name not in self.namespace:
            self.namespace[name] = value
            return False
        own = self.namespace[name]
        if type(own) is not type(value):
            return False
        if isinstance(own, list):
            own[:] = value
        elif isinstance(own, dict | set):
            own.clear()
            own.update(value)
        elif isinstance(own, torch.Tensor) and own.shape == value.shape:
            with torch.no_grad():
                own.copy_(value)
        else:
            return False
        return True

    def _tell(self, text: str, names: list[str]) -> None:
        if names:
            self.texts.append(text.format(names=_quoted(names)))

    def _remove_files(self) -> None:
        storage = self.run.record.storage
        for path in map(Path, (storage.bundle, *storage.results)):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            (self.run.folder / COLLECTED_FILE).touch()


def _quoted(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _loop_targets(cell: str) -> frozenset[str]:
    try:
        return loop_targets(cell)
    except SyntaxError:  # it has magics
        return frozenset()


def _has_state(value: Any) -> bool:
    """Return whether ``value`` is a module with parameters, an optimizer, a scheduler, ..."""
    if isinstance(value, type) or not hasattr(value, "load_state_dict"):
        return False
    return bool(value.state_dict())


def _is_optimizer(value: Any) -> bool:
    return hasattr(value, "param_groups")


def _shape(value: Any) -> object:
    """Return what two objects must have in common so that one takes the state of the other."""
    if _is_optimizer(value):
        return [[tuple(p.shape) for p in group["params"]] for group in value.param_groups]
    state = value.state_dict() if _has_state(value) else {}
    return {key: tuple(part.shape) for key, part in state.items() if hasattr(part, "shape")}
