"""What a launcher removes at the end of a run, by a process that may end all its children."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CLEAN_UP = """
import subprocess, sys, time
from nbmgpu.engines.local.cleanup import ForkedPids, clean_up
remove = "import os, sys, time; time.sleep(2.5); os.unlink(sys.argv[1])"
names = sys.argv[1], "multiprocessing.resource_tracker"
tracker = subprocess.Popen([sys.executable, "-c", remove, *names])
other = subprocess.Popen(["sleep", "60"])
begun = time.monotonic()
clean_up([], ForkedPids(), 0.0)
print(time.monotonic() - begun)
"""


def test_a_resource_tracker_on_a_busy_machine_has_time(tmp_path: Path) -> None:
    """What it would leave in /dev/shm has names that nobody else knows."""
    path = tmp_path / "psm"
    path.touch()
    done = subprocess.run(
        [sys.executable, "-c", CLEAN_UP, str(path)], capture_output=True, text=True, check=True
    )
    assert not path.exists()
    assert float(done.stdout) < 9
