"""Builds the stand-in device; ``python tests/standin/build.py FOLDER`` puts it into a folder.

With the folder on ``PYTHONPATH``, torch has the device ``standin``, in this and all processes that
this one starts.  It is built once per source and version of torch: a minute on one idle core.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
from pathlib import Path

import torch
from torch.utils import cpp_extension

HERE = Path(__file__).parent
SOURCES = (HERE / "device.cpp", HERE / "module.cpp")


def build(folder: Path) -> None:
    """Build into ``folder``; test processes that need it at the same time wait for the first."""
    inputs = [*SOURCES, HERE / "counters.h", *sorted((HERE / "package").rglob("*.*"))]
    state = hashlib.sha256(b"".join(path.read_bytes() for path in inputs if path.is_file()))
    state.update(torch.__version__.encode())
    objects = folder / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    done = folder / "built"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists() and done.read_text() == state.hexdigest():
            return
        cpp_extension.load(
            "standin_native",
            [str(source) for source in SOURCES],
            extra_cflags=["-O0", "-g0", "-w"],
            build_directory=str(objects),
            is_python_module=False,
        )
        shutil.copy(objects / "standin_native.so", folder / "new.so")
        os.replace(folder / "new.so", folder / "standin_native.so")  # others may have mapped it
        shutil.copytree(HERE / "package", folder, dirs_exist_ok=True)
        done.write_text(state.hexdigest())


if __name__ == "__main__":
    build(Path(sys.argv[1]))
