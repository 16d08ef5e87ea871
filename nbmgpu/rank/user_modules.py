"""The user's modules in a rank: with the notebook's values, and what the cell changes in them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial

from nbmgpu.environment import module_state
from nbmgpu.environment.module_state import ModuleState

from .after_import import AfterImport


class UserModules:
    """Assigns the notebook's values to attributes of modules, those imported later too."""

    def __init__(self) -> None:
        """Know of no modules."""
        self._before: dict[str, ModuleState] = {}
        self._finder = AfterImport({})

    def receive(self, states: Mapping[str, ModuleState]) -> None:
        """Take the notebook's values, by the name of the module."""
        self._before.clear()
        self._finder.waiting = {n: partial(self._assign, n, state) for n, state in states.items()}
        for name in states.keys() & sys.modules.keys():
            self._finder.waiting.pop(name)()
        if self._finder not in sys.meta_path:
            sys.meta_path.insert(0, self._finder)

    def _assign(self, name: str, state: ModuleState) -> None:
        module = sys.modules[name]
        module_state.assign(module, state)
        self._before[name] = module_state.snapshot(module)

    def changes(self) -> dict[str, ModuleState]:
        """Return what the cell has changed, by the name of the module."""
        after = {n: module_state.snapshot(sys.modules[n]) for n in self._before if n in sys.modules}
        found = {n: module_state.changes(self._before[n], state) for n, state in after.items()}
        return {name: changed for name, changed in found.items() if changed}
