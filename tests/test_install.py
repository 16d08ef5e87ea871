"""Targets of the Makefile work repeatedly in one clone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(shutil.which("node") is None, reason="the front end is built with Node.js"),
]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tracked files, with uncommitted changes."""
    folder = tmp_path_factory.mktemp("clone")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (source := REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name)
    return folder


def run(clone: Path, *command: str, **environment: str) -> str:
    """Run a command in the clone; return its output, or fail with its end."""
    variables = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
    done = subprocess.run(
        command,
        cwd=clone,
        env=variables | environment,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{' '.join(command)} failed:\n{done.stdout[-4000:]}"
    return done.stdout


def test_a_clone_can_be_rebuilt(clone: Path) -> None:
    assert_targets_can_be_rebuilt(clone)
    assert_wheel_and_sdist_build_twice(clone)


def assert_targets_can_be_rebuilt(clone: Path) -> None:
    python = clone / ".venv" / "bin" / "python"
    installed = clone / ".venv" / "share" / "jupyter" / "labextensions" / "nbmgpu"
    built = clone / "nbmgpu" / "labextension"
    pip = (str(python), "-m", "pip", "install", "-qq", "--constraint", "constraints.txt")

    run(clone, "make", "demo", "front")
    run(clone, "make", ".venv/.test")
    run(clone, *pip, "--editable", ".", SKIP_JUPYTER_BUILDER="1")
    run(clone, *pip, "--editable", ".", SKIP_JUPYTER_BUILDER="1")
    run(clone, "make", ".venv-bench")
    (clone / "constraints.txt").touch()
    run(clone, "make", "demo", "front")

    assert not (built / "install.json").exists(), "pip has written into the source tree"
    assert not installed.is_symlink()
    assert {path.name for path in installed.iterdir()} == {
        "install.json", "package.json", "schemas", "static"
    }  # fmt: skip
    assert "nbmgpu" in run(clone, str(clone / ".venv/bin/jupyter"), "labextension", "list")


def test_a_release_installs_where_there_is_no_node(clone: Path, tmp_path: Path) -> None:
    python = str(REPOSITORY / ".venv" / "bin" / "python")
    run(clone, python, "-m", "build", "--sdist", "--outdir", str(tmp_path / "dist"))
    (sdist,) = (tmp_path / "dist").iterdir()
    wheel = (python, "-m", "pip", "wheel", "-qq", "--no-deps", "-w", str(tmp_path / "dist"))
    run(tmp_path, *wheel, str(sdist), PATH=str(tmp_path))  # no programs
    run(tmp_path, python, "-m", "twine", "check", "--strict", *map(str, sdist.parent.iterdir()))

    run(tmp_path, python, "-m", "venv", "clean")
    bin_ = tmp_path / "clean" / "bin"
    pip = (str(bin_ / "pip"), "install", "-qq", "--constraint", str(clone / "constraints.txt"))
    run(tmp_path, *pip, "torch")
    (built,) = sdist.parent.glob("*.whl")
    run(tmp_path, *pip, f"{built}[demo]")
    version = run(tmp_path, str(bin_ / "nbmgpu"), "--version").split()[-1]
    assert built.name.startswith(f"nbmgpu-{version}-")
    jupyter = str(bin_ / "jupyter")
    listed = run(tmp_path, jupyter, "labextension", "list")
    assert f"nbmgpu v{version.replace('.dev', '-dev.')}" in listed
    extensions = run(tmp_path, jupyter, "server", "extension", "list")
    assert re.search(rf"nbmgpu {version} \S*OK", extensions)
    shutil.copy(clone / "notebooks" / "quickstart.ipynb", tmp_path)
    runs = str(tmp_path / "runs")
    run(tmp_path, jupyter, "execute", "quickstart.ipynb", NBMGPU_RUNS=runs)


def assert_wheel_and_sdist_build_twice(clone: Path) -> None:
    python = str(clone / ".venv" / "bin" / "python")
    for attempt in ("first", "second"):
        run(clone, python, "-m", "pip", "wheel", "-qq", "--no-deps", "-w", f"dist/{attempt}", ".")
        run(clone, python, "-m", "build", "--sdist", "--outdir", f"dist/{attempt}")
        (wheel,) = (clone / "dist" / attempt).glob("*.whl")
        names = zipfile.ZipFile(wheel).namelist()
        assert len(names) == len(set(names)), "a file is in the wheel twice"
        prefix = "share/jupyter/labextensions/nbmgpu/"
        found = {name.partition(prefix)[2] for name in names if prefix in name}
        assert {"install.json", "package.json", "static/style.js"} <= found
        assert list((clone / "dist" / attempt).glob("*.tar.gz"))
