"""Tells files of Python, of installed packages and of nbmgpu from the user's own."""

from __future__ import annotations

import functools
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

LIBRARY_FILE = re.compile(
    r"[/\\](site-packages|dist-packages)[/\\]|^<|"
    + re.escape(sysconfig.get_path("stdlib") + os.sep)
    + "|"
    + re.escape(str(Path(__file__).parents[1]) + os.sep)
)
"""Matches file names of code that is not the user's."""


def libraries_of(paths: Iterable[str]) -> list[str]:
    """Return those of ``paths`` that any process of this interpreter has on its search path.

    They are its standard library and its folders of installed packages.
    """
    standard, packages = _library_folders()
    return [
        path
        for path in paths
        if path in packages or path == standard or path.startswith(standard + os.sep)
    ]


@functools.cache
def _library_folders() -> tuple[str, frozenset[str]]:
    """Return the folder of the standard library, and what else belongs to this interpreter."""
    standard = sysconfig.get_path("stdlib")
    archive = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    packages = {*site.getsitepackages(), site.getusersitepackages()}
    packages.add(str(Path(standard).with_name(archive)))
    packages |= {sysconfig.get_path(scheme) for scheme in ("purelib", "platlib")}
    return standard, frozenset(packages)
