"""The Python that a user has chosen for the nodes: whether it can run ranks of this notebook.

It is asked in its own words, before anything of nbmgpu is imported there: that fails with a
traceback in another version of Python, and where packages are missing.
"""

from __future__ import annotations

from .versions import Versions

CHECK = """
import os, platform, sys
from importlib.util import find_spec
wanted, packages = {wanted!r}, {packages!r}
where = "%s on node %s" % (sys.executable, os.getenv("SLURMD_NODENAME") or platform.node())
found = ".".join(platform.python_version_tuple()[:2])
missing = [name for name in packages if find_spec(name) is None]
if found != wanted:
    sys.exit("%s is Python %s, and the notebook's is %s: functions of one do not run in the other. "
        "Choose another one: --engine-option python=/path/to/python%s"
        % (where, found, wanted, wanted))
if missing:
    sys.exit("%s has no %s. Install there: %s -m pip install %s"
        % (where, " and no ".join(missing), sys.executable,
        " ".join(packages[name] for name in missing)))
"""
"""Runs in any Python 3."""

NONE = "There is no {python} on node {node}. Leave python= out for the notebook's own Python."


def check_of_python() -> str:
    """Return code that exits with a sentence where the Python that runs it cannot run ranks."""
    versions = Versions.of_this_process()
    packages = {"psutil": "psutil"} | {
        name: f"{name}=={version}"
        for name in ("nbmgpu", "torch", "cloudpickle")
        if (version := getattr(versions, name))
    }
    return CHECK.format(wanted=versions.python, packages=packages)
