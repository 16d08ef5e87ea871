"""Builds the stand-in device; ``python tests/standin/build.py FOLDER`` puts it into a folder."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = (HERE / "device.cpp", HERE / "module.cpp")


def main(target: Path) -> None:
    import torch
    from torch.utils import cpp_extension

    inputs = [*SOURCES, HERE / "counters.h", *sorted((HERE / "package").rglob("*.py"))]
    state = hashlib.sha256(b"".join(path.read_bytes() for path in inputs))
    state.update(torch.__version__.encode())
    done = target / state.hexdigest()
    if done.exists():
        return
    objects = target / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    cpp_extension.load(
        "standin_native",
        [str(source) for source in SOURCES],
        extra_cflags=["-O0", "-g0", "-w"],
        build_directory=str(objects),
        is_python_module=False,
    )
    shutil.copy(objects / "standin_native.so", target)
    shutil.copytree(HERE / "package", target, dirs_exist_ok=True)
    done.touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
