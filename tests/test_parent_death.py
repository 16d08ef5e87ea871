"""A process that exits with its parent, whichever of the parent's threads has started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system does not report it")

CHILD = """
import os, signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup
from nbmgpu.system.parent_death import exit_with_parent, outlive_grandparent
exit_with_parent(int(sys.argv[1]))
if os.fork() == 0:
    outlive_grandparent()
    os.kill(os.getpid(), 1)
print(os.getpid(), flush=True)
os.wait()
while True:
    pass
"""
PARENT = """
import os, subprocess, sys, threading, time
def start():
    subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())])
thread = threading.Thread(target=start)
thread.start()
thread.join()
time.sleep(100)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_busy_process_exits_with_its_parent_but_not_with_its_thread() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())  # its parent's thread may have ended by now
        os.kill(child, signal.SIGHUP)
        time.sleep(0.3)
        assert is_running(child)
        parent.kill()
        deadline = time.monotonic() + 20
        while is_running(child) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not is_running(child)


def test_a_process_whose_parent_has_ended_before_it_asks_exits() -> None:
    code = CHILD.replace("if os.fork() == 0:", "if False:")
    found = subprocess.run(
        [sys.executable, "-c", code, "1"], capture_output=True, timeout=60, check=False
    )
    assert (found.returncode, found.stdout) == (0, b"")
