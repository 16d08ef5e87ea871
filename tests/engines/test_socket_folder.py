"""Folders of sockets: those of killed launchers are removed by the next one, others stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from nbmgpu.engines.multi_node.socket_folder import (
    MIN_AGE,
    NEW,
    PREFIX,
    remove_abandoned,
    socket_folder,
)

LAUNCHER = """
import os, sys, time
from nbmgpu.engines.multi_node.socket_folder import socket_folder
with socket_folder() as folder:
    rank = os.fork()
    print(folder if rank else "", rank, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let this process and its children have temporary files in a folder of their own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def left(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_a_folder_is_there_while_it_is_used_and_no_longer(temporary: Path) -> None:
    with socket_folder() as folder:
        assert left(temporary) == [Path(folder).name]
        (Path(folder) / "listener").touch()
        remove_abandoned()
        assert os.path.isdir(folder), "its owner is alive"
    assert left(temporary) == []


def test_the_folder_of_a_killed_launcher_is_removed_when_its_ranks_have_ended(
    temporary: Path,
) -> None:
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    words = (launcher.stdout.readline() + launcher.stdout.readline()).split()
    rank = max(int(word) for word in words if word.isdecimal())
    launcher.kill()
    launcher.wait()
    assert len(left(temporary)) == 1
    remove_abandoned()
    assert len(left(temporary)) == 1, "its rank is alive"
    os.kill(rank, signal.SIGKILL)
    launcher.stdout.read()  # ends with the rank
    launcher.stdout.close()
    with socket_folder():
        assert len(left(temporary)) == 1
    assert left(temporary) == []


def test_a_folder_that_is_not_locked_yet_stays_for_a_while(temporary: Path) -> None:
    new = temporary / f"{NEW}x"
    new.mkdir(mode=0o700)
    remove_abandoned()
    assert left(temporary) == [new.name]
    os.utime(new, (time.time() - 2 * MIN_AGE,) * 2)
    remove_abandoned()
    assert left(temporary) == []


def test_a_launcher_removes_in_the_end_what_others_have_left(temporary: Path) -> None:
    with socket_folder():
        (temporary / f"{PREFIX}x").mkdir(mode=0o700)
    assert left(temporary) == []


def test_what_is_not_such_a_folder_stays(temporary: Path) -> None:
    (temporary / "kept").mkdir()
    (temporary / f"{PREFIX}link").symlink_to(temporary / "kept")
    (temporary / f"{PREFIX}file").touch()
    (temporary / f"{PREFIX}open").mkdir(mode=0o755)
    (temporary / f"{PREFIX}abandoned").mkdir(mode=0o700)
    remove_abandoned()
    assert left(temporary) == ["kept", f"{PREFIX}file", f"{PREFIX}link", f"{PREFIX}open"]
