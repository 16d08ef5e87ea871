"""A process without the right to change files cannot do so, whatever code tries it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = """
import ctypes, os, socket, subprocess, sys
from nbmgpu.system.landlock import forbid_writes

allowed, other = sys.argv[1:]
if not forbid_writes([allowed, "/dev", "/does/not/exist"]):
    raise SystemExit("not supported")
open(f"{allowed}/made", "w").write("made")
open("/dev/null", "w").write("nothing")
assert open(f"{other}/kept").read() == "kept"
for change in (
    lambda: open(f"{other}/made", "w"),
    lambda: open(f"{other}/kept", "w"),
    lambda: os.remove(f"{other}/kept"),
    lambda: os.mkdir(f"{other}/folder"),
    lambda: os.rename(f"{other}/kept", f"{allowed}/kept"),
    lambda: os.truncate(f"{other}/kept", 0),
    lambda: socket.create_server(("127.0.0.1", 0)),
):
    try:
        change()
    except OSError:
        continue
    raise AssertionError("it was allowed")
assert ctypes.CDLL(None).creat(f"{other}/made".encode(), 0o600) == -1
assert subprocess.run(["sh", "-c", f"echo made > {other}/made"], stderr=-3).returncode
"""


def test_only_some_folders_can_be_written_to(tmp_path: Path) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    allowed.mkdir()
    other.mkdir()
    (other / "kept").write_text("kept")
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(allowed), str(other)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.stderr == "not supported\n":
        pytest.skip("this kernel has no Landlock")
    assert (done.returncode, done.stderr) == (0, "")
    assert (allowed / "made").read_text() == "made"
    assert [path.name for path in other.iterdir()] == ["kept"]
