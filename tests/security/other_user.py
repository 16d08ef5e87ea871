"""Runs code as another user of this machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

USER = 12345
"""The id of a user who owns nothing and is in no group."""

IMPORTS = "import encodings.idna, os, pathlib, socket, sys\n"
BECOME = f"os.setgroups([]); os.setgid({USER}); os.setuid({USER})\n"


def require_root() -> None:
    """Skip the test if it cannot become another user."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")


def run_as_other_user(code: str, *arguments: str, imports: str = "") -> str:
    """Run Python code as another user; return what it prints.

    Args:
        code: what to run.
        arguments: ``sys.argv[1:]``.
        imports: code that this user runs before, as the other one may not read the modules.
    """
    done = subprocess.run(
        [sys.executable, "-c", f"{IMPORTS}{imports}\n{BECOME}{code}", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


READ = """
for path in sys.argv[1:]:
    try:
        pathlib.Path(path).read_bytes() if not pathlib.Path(path).is_dir() else os.listdir(path)
        print("read", path)
    except PermissionError:
        pass
"""


def readable_by_others(*paths: str) -> list[str]:
    """Return those of ``paths`` that another user can read or list."""
    return run_as_other_user(READ, *paths).splitlines()
