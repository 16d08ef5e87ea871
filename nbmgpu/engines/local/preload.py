"""Imports libraries of the notebook ahead of time, in the fork server.

What the notebook has imported, its ranks will import too: for transformers, seconds in each of
them.  The server imports it once, and ranks forked from it have it.

The server must stay a process that ranks can be forked from: one thread, no GPU opened.  So each
package is imported in a child process first, a *trial*, with the kernel's environment variables.
The server imports it only if the child is still fork safe afterwards.  Modules of the user's own
are never imported here, for they may be edited; a library that was reinstalled is dropped.
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

from nbmgpu.system.parent_death import die_with_parent, outlive_grandparent
from nbmgpu.system.procfs import open_files

NEVER_PRELOADED = frozenset({
    "IPython", "_pytest", "anywidget", "coverage", "debugpy", "execnet", "ipykernel", "ipywidgets",
    "jupyter_client", "jupyter_core", "nbmgpu", "pip", "playwright", "pluggy", "pytest", "tornado",
    "xdist", "zmq",
})  # fmt: skip
"""Packages that serve the kernel, and that no cell needs."""

TRIAL_TIMEOUT = 300
"""Seconds for the trial of a package; one that waits for something is left to the ranks."""

LIBRARY_FOLDERS = ("site-packages", "dist-packages")
"""Names of the folders that libraries are installed in."""

COMMON_MODULES = ("torch._dynamo",)
"""What most cells need besides: an optimizer imports it when it is made, which takes as long as
torch itself.  A first run that starts at once, and does not need it, does not wait for it."""


@dataclass(frozen=True)
class PreloadRequest:
    """Modules of one package to import, with the kernel's environment variables."""

    package: str
    modules: tuple[str, ...]
    variables: dict[str, str]


def imported_libraries() -> list[str]:
    """Return the names of all modules in this process that were installed as libraries."""
    folders = _folders_of_libraries()
    found = []
    for name in list(sys.modules):
        if _origin(name).startswith(folders) and _package(name) not in NEVER_PRELOADED:
            found.append(name)
    return found


def _may_be_edited(name: str) -> bool:
    """Return whether a module is the user's own: neither in a library folder nor Python's.

    A library may import such a module, as does one that was installed in editable mode.
    """
    origin = _origin(name)
    return origin.startswith(os.sep) and not origin.startswith(_folders_of_python())


def _origin(name: str) -> str:
    """Return the file of an imported module, or what else its spec has as origin."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return getattr(spec, "origin", None) or ""


def _package(name: str) -> str:
    return name.partition(".")[0]


def _folders_of_libraries() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths["purelib"], paths["platlib"], site.getusersitepackages()}
    return tuple(folder.rstrip(os.sep) + os.sep for folder in folders)


def _folders_of_python() -> tuple[str, ...]:
    """Return the folders of the standard library, and of libraries wherever they were installed."""
    paths = sysconfig.get_paths()
    folders = {paths["stdlib"], paths["platstdlib"], *site.getsitepackages()}
    on_path = [path for path in sys.path if os.path.basename(path) in LIBRARY_FOLDERS]
    return (
        *_folders_of_libraries(),
        *(each.rstrip(os.sep) + os.sep for each in [*folders, *on_path]),
    )


class Preloader:
    """The server's queue of requests, the trial that runs, and the packages it has loaded."""

    def __init__(self) -> None:
        """Start with an empty queue."""
        self._queue: deque[PreloadRequest] = deque()
        self._trial: tuple[int, PreloadRequest] | None = None
        self._accepted: PreloadRequest | None = None
        self._rejected: set[str] = set()
        self._mtimes: dict[str, float] = {}

    @property
    def busy(self) -> bool:
        """Whether a package waits, is in its trial, or has passed it."""
        return bool(self._queue or self._trial or self._accepted)

    def request(self, names: Iterable[str], variables: dict[str, str]) -> None:
        """Queue the import of ``names``, package by package."""
        if sys.platform != "linux":
            return  # elsewhere there is no way to see whether a process is fork safe
        packages: dict[str, list[str]] = {}
        for name in names:
            package = _package(name)
            if name not in sys.modules and package not in self._rejected:
                packages.setdefault(package, []).append(name)
        queued = {request.package for request in self._queue}
        self._queue += [
            PreloadRequest(package, tuple(modules), variables)
            for package, modules in packages.items()
            if package not in queued
        ]

    def advance(self) -> bool:
        """Import a package that has passed its trial and return True, or start the next trial."""
        if self._accepted:
            request, self._accepted = self._accepted, None
            self._load(request)
            return True
        if self._trial or not self._queue:
            return False
        request = self._queue.popleft()
        server = os.getpid()
        if pid := os.fork():
            self._trial = pid, request
            return False
        code = 1
        try:
            outlive_grandparent()
            os.nice(10)
            die_with_parent(server, signal.SIGKILL)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
            signal.alarm(TRIAL_TIMEOUT)
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            before = set(sys.modules)
            _import(request)
            new = sys.modules.keys() - before
            others = [name for name in new if _package(name) != request.package]
            code = 0 if is_fork_safe() and not any(map(_may_be_edited, others)) else 1
        finally:
            os._exit(code)

    def is_trial(self, pid: int) -> bool:
        """Return whether ``pid`` is the child process of the trial that runs."""
        return self._trial is not None and self._trial[0] == pid

    def end_trial(self, code: int) -> None:
        """Accept or reject the package whose trial has ended with exit code ``code``."""
        assert self._trial is not None
        _, request = self._trial
        self._trial = None
        if code == 0:
            self._accepted = request
        else:
            self._rejected.add(request.package)

    def _load(self, request: PreloadRequest) -> None:
        _import(request)
        self._mtimes.setdefault(request.package, _mtime(request.package))
        gc.collect()
        gc.freeze()

    def drop_reinstalled(self) -> None:
        """Drop libraries that were reinstalled; called in a launcher, before its ranks."""
        for package, mtime in self._mtimes.items():
            if _mtime(package) != mtime:
                for name in [n for n in sys.modules if _package(n) == package]:
                    del sys.modules[name]


def _import(request: PreloadRequest) -> None:
    own = dict(os.environ)
    os.environ.update(request.variables)
    try:
        for name in request.modules:
            try:
                importlib.import_module(name)
            except Exception:  # a rank that needs it will raise it
                continue
    finally:
        os.environ.clear()
        os.environ.update(own)


def _mtime(package: str) -> float:
    """Return when ``package`` was installed, 0 if that is unknown, -1 if it is gone."""
    origin = _origin(package)
    try:
        return os.stat(origin).st_mtime if origin else 0.0
    except OSError:
        return -1.0


def is_fork_safe() -> bool:
    """Return whether this process can be forked: it has a single thread and no GPU opened."""
    if len(os.listdir("/proc/self/task")) > 1:
        return False
    return not any(path.startswith("/dev/nvidia") for path in open_files())
