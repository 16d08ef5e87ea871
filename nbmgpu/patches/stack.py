"""Installs patches of other libraries, and removes them in reverse order."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from nbmgpu.errors import LibraryError, format_message

from . import lookup
from .table import TABLE, entry_of
from .target import PatchTarget

_ABSENT = object()

_notice: Callable[[str, str], None] = lambda topic, text: None  # noqa: E731


def on_missing(notice: Callable[[str, str], None]) -> None:
    """Report optional targets that are missing to ``notice(topic, text)`` in this process."""
    global _notice
    _notice = notice


class PatchStack:
    """Patches that are installed together, and removed in reverse order.

    Also a context manager that removes them on exit.  Targets are named as in the table; for
    another object that has the method (a subclass, an instance, another copy of the library)
    give it as ``owner``.
    """

    def __init__(self) -> None:
        """Begin with no patches."""
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> PatchStack:
        """Return the stack itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove all patches."""
        self.remove()

    def __bool__(self) -> bool:
        """Whether any patch is installed."""
        return bool(self._undo)

    def wrap(self, target: str, make: Callable[[Any], Any], owner: Any = None) -> bool:
        """Replace the target by ``make(original)``; see ``replace``."""
        entry = entry_of(target)
        found, original = self._original(entry, owner)
        if original is _ABSENT:
            return self._miss(entry)
        self._set(found, entry.name, make(original))
        return True

    def replace(self, target: str, replacement: Any, owner: Any = None) -> bool:
        """Replace the target.

        Returns:
            Whether it was replaced: false where an optional target is missing, after a notice.

        Raises:
            LibraryError: a required target is missing.
        """
        return self.wrap(target, lambda _: replacement, owner)

    def add(self, target: str, value: Any, owner: Any = None) -> None:
        """Set an attribute that the library's class or module may not have itself."""
        entry = entry_of(target)
        self._set(lookup.owner_of(entry) if owner is None else owner, entry.name, value)

    def delete(self, target: str, owner: Any) -> None:
        """Delete an attribute of ``owner``; ``remove`` sets it again."""
        name = entry_of(target).name
        value = vars(owner)[name]
        delattr(owner, name)
        self._undo.append(functools.partial(setattr, owner, name, value))

    def replace_in(
        self, target: str, replacement: Any, modules: Iterable[Any], any_name: bool = False
    ) -> None:
        """Replace the target in every one of ``modules`` that has it.

        With ``any_name`` also where it is bound to another name.  That touches every value in the
        modules; a rank then copies each page that has one, as it counts references (30 ms for
        all of torch).
        """
        entry = entry_of(target)
        _, original = self._original(entry, None)
        if original is _ABSENT:
            self._miss(entry)
            return
        for module in modules:
            names = list(vars(module)) if any_name else [entry.name]
            for name in names:
                if vars(module).get(name) is original:
                    self._set(module, name, replacement)

    def remove(self) -> None:
        """Restore the originals, the last patch first."""
        while self._undo:
            self._undo.pop()()

    def _original(self, entry: PatchTarget, owner: Any) -> tuple[Any, Any]:
        if owner is None:
            try:
                owner = lookup.owner_of(entry)
            except (ImportError, AttributeError):
                return None, _ABSENT
        return owner, getattr(owner, entry.name, _ABSENT)

    def _set(self, owner: Any, name: str, value: Any) -> None:
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)
        if before is _ABSENT:
            self._undo.append(functools.partial(delattr, owner, name))
        else:
            self._undo.append(functools.partial(setattr, owner, name, before))

    def _miss(self, entry: PatchTarget) -> bool:
        installed = entry.library.installed
        if entry.required:
            raise LibraryError(_explained(entry, installed))
        if entry.is_for(installed):
            _notice(f"missing {entry.target}", entry.missing_text(installed))
        return False


def explain_missing(error: BaseException) -> str:
    """Return which required name is missing, if that explains ``error``; else an empty string.

    A private name is imported or read by a plain statement, which fails with ImportError or
    AttributeError where the library has moved it.
    """
    if not isinstance(error, ImportError | AttributeError) or error.name is None:
        return ""
    words = set(str(error).replace("'", " ").replace(".", " ").split())
    for entry in TABLE.values():
        named = entry.name in words or entry.owner.rpartition(".")[2] in words
        installed = entry.library.installed if named and entry.required else ""
        if installed and not lookup.exists(entry):
            return _explained(entry, installed)
    return ""


def _explained(entry: PatchTarget, installed: str) -> str:
    library = entry.library
    name = library.name or "python"
    what = f"{name} {installed} has no {entry.target}, which nbmgpu needs: {entry.why}"
    allowed = f"nbmgpu was tested with {library.tested}"
    return format_message(what.rstrip("."), allowed, f"pip install '{name}=={library.last}.*'")
