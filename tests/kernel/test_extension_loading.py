"""``%load_ext nbmgpu`` imports little; heavy modules are imported while the kernel is idle."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kernels import REPOSITORY, notebook_in, wait_for

HEAVY = "{'numpy', 'torch', 'pandas', 'anywidget', 'nbmgpu.kernel.execution', 'nbmgpu.report'}"


def test_heavy_modules_are_imported_when_the_kernel_is_idle(tmp_path: Path) -> None:
    with notebook_in(tmp_path) as notebook:
        notebook.run(f"%load_ext nbmgpu\nimport sys\nimported = {HEAVY} & set(sys.modules)")
        assert notebook.value("imported") == set()
        wait_for(lambda: notebook.value("'nbmgpu.ui.panel' in sys.modules"), 30)
        assert notebook.value("'torch' in sys.modules") is False


def test_the_extension_can_be_loaded_by_the_ipython_configuration(
    tmp_path: Path,
) -> None:
    profile = tmp_path / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    extensions = "c.InteractiveShellApp.extensions = ['nbmgpu']"
    (profile / "ipython_config.py").write_text(extensions)
    with notebook_in(tmp_path) as notebook:
        wait_for(lambda: notebook.value("'nbmgpu.ui.panel' in __import__('sys').modules"), 30)
        assert notebook.run("%%mgpu --gpus 2 --cpu\n6 * 7").seen == ["42"]


def test_terminal_ipython_imports_modules_at_the_first_run(tmp_path: Path) -> None:
    path = tmp_path / "session.ipy"
    path.write_text(
        "%load_ext nbmgpu\n"
        "import sys\n"
        "print('kernel' if 'nbmgpu.kernel.execution' in sys.modules else 'not imported')\n"
        "get_ipython().run_cell_magic('mgpu', '--gpus 2 --cpu', 'x = 6 * 7')\n"
        "print('x is', x)\n"
    )
    folders = {"NBMGPU_RUNS": str(tmp_path / "runs"), "IPYTHONDIR": str(tmp_path / "ipython")}
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", str(path)], check=False, timeout=60,
        env=os.environ | folders | {"PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True,
    )  # fmt: skip
    assert "not imported" in done.stdout, done.stderr
    assert "x is 42" in done.stdout, done.stderr


def test_a_cell_can_run_before_the_idle_imports(tmp_path: Path) -> None:
    with notebook_in(tmp_path) as notebook:
        cells = ["%load_ext nbmgpu", "%%mgpu --gpus 2 --cpu\nx = 'ran'\nx", "%mgpu runs"]
        sent = [notebook.send(cell) for cell in cells]
        _, ran, runs = (cell.ok() for cell in sent)
        assert ran.seen[-1] == "'ran'"
        assert "finished" in runs.seen[-1]


@pytest.mark.parametrize(
    "first", ["nbmgpu.runs.run", "nbmgpu.engines.local.client", "nbmgpu.kernel.execution", "nbmgpu"]
)
def test_public_names_do_not_depend_on_the_import_order(first: str) -> None:
    source = f"""
import importlib, types
importlib.import_module({first!r})
import nbmgpu
found = {{name: getattr(nbmgpu, name) for name in nbmgpu.__all__}}
assert not [name for name, value in found.items() if isinstance(value, types.ModuleType)], found
assert set(nbmgpu.__all__) <= set(dir(nbmgpu))
"""
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)


@pytest.mark.matrix("nbmgpu/frontend", "nbmgpu/engines/local")
def test_libraries_are_preloaded_after_a_run_and_not_during_it(tmp_path: Path) -> None:
    with notebook_in(tmp_path) as notebook:
        notebook.load()
        time.sleep(5)  # imports delayed by the first run have finished
        loaded = "any('/sklearn/' in part.path for part in {}.memory_maps())"
        notebook.send("import psutil, sklearn.cluster")
        run = "%%mgpu --gpus 2 --cpu\nimport time; time.sleep(6)\n"
        notebook.run(run + "during_run = " + loaded.format("psutil.Process().parent().parent()"))
        assert notebook.value("during_run") is False
        server = f"psutil.Process({notebook.fork_server().pid})"
        wait_for(lambda: notebook.value(loaded.format(server)), 30)
