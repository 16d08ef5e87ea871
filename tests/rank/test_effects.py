"""Which changes of files count as effects of a cell."""

import subprocess
import sys

import pytest

WATCH = """
import os, sys
from pathlib import Path
from nbmgpu.rank.effects import watch_effects
seen = []
watch_effects(Path("run"), lambda change: seen.append(change.path), lambda *_: None)
os.environ[sys.argv[1]] = sys.argv[2]  # as torch's compiler does when it first runs
for folder in sys.argv[2:]:
    os.makedirs(folder)
    open(os.path.join(folder, "some.lock"), "w").close()
print(*seen, sep="\\n")
"""


@pytest.mark.parametrize(
    "variable", ["TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME"]
)
def test_files_in_caches_of_libraries_are_not_the_cells(tmp_path, variable):
    cache, other = tmp_path / "cache", tmp_path / "cache-of-cell"
    command = [sys.executable, "-c", WATCH, variable, str(cache), str(other)]
    environment = {"TMPDIR": "/dev/shm", "PATH": "/usr/bin", "HF_HOME": ""}  # as if it were not set
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == [str(other), str(other / "some.lock")]
