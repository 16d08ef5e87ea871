"""An entry of the patch table: one name of another library."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version


class Kind(Enum):
    """How nbmgpu uses a name of another library."""

    PATCHED = "patched"
    """A function, method, class or setting that is replaced or wrapped."""

    ADDED = "added"
    """An attribute that the library does not define and nbmgpu sets on one of its classes."""

    PRIVATE = "private"
    """A private name that is imported, read, or overridden in a subclass."""


@dataclass(frozen=True)
class Library:
    """A library, and the versions of it that the test suite has run with.

    Attributes:
        name: distribution name, as for ``pip install``; empty for Python itself.
        first: oldest tested version, as major.minor.
        last: newest tested version, as major.minor.
        required_for: what cannot run where a required name is missing.
        packages: import names, where one distribution or its twin has several copies of the
            same code; the first is the one that the table uses.
    """

    name: str
    first: str
    last: str
    required_for: str
    packages: tuple[str, ...] = ()

    @property
    def tested(self) -> str:
        """The tested versions, for people: ``2.13`` or ``2.12 to 2.13``."""
        versions = self.first if self.first == self.last else f"{self.first} to {self.last}"
        return f"{self.name or 'python'} {versions}"

    @property
    def installed(self) -> str:
        """The installed version, or an empty string."""
        if not self.name:
            import platform

            return platform.python_version()
        for name in (self.name, *(package.replace("_", "-") for package in self.packages)):
            try:
                return version(name)
            except PackageNotFoundError:
                continue
        return ""

    def was_tested_with(self, installed: str) -> bool:
        """Whether ``installed`` is within the tested versions; patch releases do not count."""
        return _minor(self.first) <= _minor(installed) <= _minor(self.last)


@dataclass(frozen=True)
class PatchTarget:
    """A name of another library that nbmgpu replaces or relies on.

    Attributes:
        target: dotted name, beginning with the module.
        why: one sentence.
        library: whose name it is, and the tested versions.
        kind: whether it is patched, added, or a private name that is used.
        without: the feature that is off where the name is missing.  Empty for a required name:
            without it there is an error.
        since: the first version that has the name; older ones need no patch and get no notice.
        gone: a version that does not have the name any more, and needs no patch.
        example: makes an object that has the name, where its class does not show it.
    """

    target: str
    why: str
    library: Library
    kind: Kind
    without: str = ""
    since: str = ""
    gone: str = ""
    example: Callable[[], object] | None = None

    @property
    def required(self) -> bool:
        """Whether nbmgpu raises an error where the name is missing."""
        return not self.without

    @property
    def owner(self) -> str:
        """The module or class that has the name."""
        return self.target.rpartition(".")[0]

    @property
    def name(self) -> str:
        """The last part of the dotted name."""
        return self.target.rpartition(".")[2]

    @property
    def consequence(self) -> str:
        """What happens where the name is missing, as a clause."""
        return self.without or f"{self.library.required_for} cannot run"

    def is_for(self, installed: str) -> bool:
        """Whether version ``installed`` of the library is expected to have the name."""
        if self.since and older(installed, self.since):
            return False
        return not self.gone or older(installed, self.gone)

    def missing_text(self, installed: str) -> str:
        """Return the sentences that a user or a failing test reads where the name is missing."""
        library = self.library.name or "python"
        return (
            f"{library} {installed} has no {self.target}, which nbmgpu uses: {self.why} "
            f"Without it, {self.consequence}. It was tested with {self.library.tested}."
        )


def older(installed: str, since: str) -> bool:
    """Whether version ``installed`` is older than ``since``."""
    return _minor(installed) < _minor(since)


def _minor(text: str) -> tuple[int, ...]:
    """Return major and minor of a version: ``2.13.0+cpu`` gives (2, 13)."""
    numbers = [int(number) for number in re.findall(r"\d+", text)[:2]]
    return tuple(numbers + [0] * (2 - len(numbers)))
