"""The benchmarks end the processes of a tool, and leave nothing of them in ``/dev/shm``."""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from benchmarks.processes import SHARED_MEMORY, ToolProcesses

VARIABLE = "NBMGPU_TEST_TOOL"

TOOL = """
import multiprocessing, signal, sys, time
from multiprocessing import resource_tracker
signal.signal(signal.SIGINT, signal.SIG_IGN)
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
lock = multiprocessing.get_context("spawn").Lock()
print(resource_tracker._resource_tracker._pid, lock._semlock.name, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not SHARED_MEMORY.exists(), reason="no /dev/shm")
@pytest.mark.parametrize("tracker", ["alive", "killed"])
@pytest.mark.parametrize("how", ["ends at SIGTERM", "stubborn"])
def test_semaphores_of_killed_processes_are_removed(how, tracker):
    value = uuid.uuid4().hex
    processes = ToolProcesses(VARIABLE, value)
    command = [sys.executable, "-c", TOOL, how]
    tool = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {VARIABLE: value}
    )
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    with tool, other:
        try:
            pid, name = tool.stdout.readline().split()
            semaphore = Path(SHARED_MEMORY, f"sem.{name.removeprefix('/')}")
            assert semaphore.exists()
            if tracker == "killed":  # as when a manager kills the whole process group
                os.kill(int(pid), signal.SIGKILL)
            processes.end()
            stubborn = how == "stubborn"
            assert tool.wait(5) == -(signal.SIGKILL if stubborn else signal.SIGTERM)
            assert other.poll() is None
        finally:
            tool.kill()
            other.kill()
    assert not semaphore.exists()
    assert not processes.find()
