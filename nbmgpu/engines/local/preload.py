"""Libraries of the notebook, imported ahead of time in the launch server.

What the notebook has imported, its ranks will import too: seconds for transformers, in
each of them.  The server imports it once, and ranks forked from it have it.

A server has to stay what ranks can be forked from: one thread, no GPU.  So every package is
imported in a child first, with the environment that the kernel has; only if the child is
clean afterwards does the server import it as well.  Modules of the user's own are never
imported here, for they may be edited; a library that was installed anew is forgotten.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import site
import sys
import sysconfig
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from nbmgpu.system.parent_death import die_with_parent
from nbmgpu.system.procfs import open_files

NEVER_PRELOADED = frozenset({
    "IPython", "_pytest", "anywidget", "coverage", "debugpy", "execnet", "ipykernel", "ipywidgets",
    "jupyter_client", "jupyter_core", "nbmgpu", "pip", "playwright", "pluggy", "pytest", "tornado",
    "xdist", "zmq",
})  # fmt: skip
"""Packages that serve the kernel, and that no cell needs."""

TRIAL = 300
"""Seconds that a library has for being tried; one that waits for something is left to ranks."""

INSTALLED = ("site-packages", "dist-packages")
"""How folders of libraries are called."""

OFTEN = ("torch._dynamo",)
"""What most cells need besides: an optimizer imports it when it is made, which takes as long as
torch itself.  A first run that comes at once, and does not need it, need not wait for it."""


@dataclass(frozen=True)
class Wish:
    """Modules of one package to import, with the environment that the kernel has."""

    package: str
    modules: tuple[str, ...]
    environment: dict[str, str]


def libraries_here() -> list[str]:
    """Return the names of all modules in this process that were installed as libraries."""
    homes = _library_folders()
    found = []
    for name in list(sys.modules):
        if _origin(name).startswith(homes) and _top(name) not in NEVER_PRELOADED:
            found.append(name)
    return found


def _may_be_edited(name: str) -> bool:
    """Tell whether a module lies neither with libraries nor with Python: one of the user's own.

    A library may import such, as one that was installed from a folder for being worked on.
    """
    origin = _origin(name)
    return origin.startswith(os.sep) and not origin.startswith(_folders_of_python())


def _origin(name: str) -> str:
    """Return the file of a module that is imported, or what else is said of where it is from."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return getattr(spec, "origin", None) or ""


def _top(name: str) -> str:
    return name.partition(".")[0]


def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths["purelib"], paths["platlib"], site.getusersitepackages()}
    return tuple(folder.rstrip(os.sep) + os.sep for folder in folders)


def _folders_of_python() -> tuple[str, ...]:
    """Return the folders of its own modules, and of libraries, wherever they were installed."""
    paths = sysconfig.get_paths()
    folders = {paths["stdlib"], paths["platstdlib"], *site.getsitepackages()}
    here = [path for path in sys.path if os.path.basename(path) in INSTALLED]
    return (*_library_folders(), *(each.rstrip(os.sep) + os.sep for each in [*folders, *here]))


class Preloader:
    """The server's side: wishes that wait, the child that tries one, what is loaded."""

    def __init__(self) -> None:
        """Have nothing but what the server itself has imported."""
        self._waiting: deque[Wish] = deque()
        self._trying: tuple[int, Wish] | None = None
        self._proven: Wish | None = None
        self._refused: set[str] = set()
        self._stamps: dict[str, float] = {}

    @property
    def busy(self) -> bool:
        """Whether something is tried, was found clean or waits."""
        return bool(self._waiting or self._trying or self._proven)

    def wish(self, names: Iterable[str], environment: dict[str, str]) -> None:
        """Import ``names`` when there is time, package by package."""
        if sys.platform != "linux":
            return  # elsewhere nothing tells whether a process is clean
        packages: dict[str, list[str]] = {}
        for name in names:
            package = _top(name)
            if name not in sys.modules and package not in self._refused:
                packages.setdefault(package, []).append(name)
        known = {wish.package for wish in self._waiting}
        self._waiting += [
            Wish(package, tuple(modules), environment)
            for package, modules in packages.items()
            if package not in known
        ]

    def turn(self) -> bool:
        """Import what a child has found clean, and tell so; or let one try the next wish."""
        if self._proven:
            wish, self._proven = self._proven, None
            self._load(wish)
            return True
        if self._trying or not self._waiting:
            return False
        wish = self._waiting.popleft()
        server = os.getpid()
        if pid := os.fork():
            self._trying = pid, wish
            return False
        code = 1
        try:
            os.nice(10)
            die_with_parent(server, signal.SIGKILL)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
            signal.alarm(TRIAL)
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            before = set(sys.modules)
            _import(wish)
            others = [name for name in sys.modules.keys() - before if _top(name) != wish.package]
            code = 0 if clean() and not any(map(_may_be_edited, others)) else 1
        finally:
            os._exit(code)

    def is_trying(self, pid: int) -> bool:
        """Tell whether ``pid`` is the child that tries a wish."""
        return self._trying is not None and self._trying[0] == pid

    def tried(self, code: int) -> None:
        """The child has ended with ``code``: 0 if what it tried may be imported here."""
        assert self._trying is not None
        _, wish = self._trying
        self._trying = None
        if code == 0:
            self._proven = wish
        else:
            self._refused.add(wish.package)

    def _load(self, wish: Wish) -> None:
        _import(wish)
        self._stamps.setdefault(wish.package, _stamp(wish.package))
        gc.collect()
        gc.freeze()

    def forget_stale(self) -> None:
        """Forget libraries that were installed anew; called in a launcher, before its ranks."""
        for package, stamp in self._stamps.items():
            if _stamp(package) != stamp:
                for name in [n for n in sys.modules if _top(n) == package]:
                    del sys.modules[name]


def _import(wish: Wish) -> None:
    mine = dict(os.environ)
    os.environ.update(wish.environment)
    try:
        for name in wish.modules:
            try:
                importlib.import_module(name)
            except Exception:  # a rank that needs it will say why
                continue
    finally:
        os.environ.clear()
        os.environ.update(mine)


def _stamp(package: str) -> float:
    """Return when ``package`` was installed, 0 when that cannot be told."""
    origin = _origin(package)
    try:
        return os.stat(origin).st_mtime if origin else 0.0
    except OSError:
        return -1.0


def clean() -> bool:
    """Tell whether processes can be forked from this one: a single thread, and no GPU opened."""
    if len(os.listdir("/proc/self/task")) > 1:
        return False
    return not any(path.startswith("/dev/nvidia") for path in open_files())
