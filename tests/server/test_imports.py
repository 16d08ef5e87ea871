"""The imports and the registration of the extension."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from jupyter_server_process import REPOSITORY

import nbmgpu

LOADED = "import sys, {}; print(*sorted(sys.modules))"


def loaded_by(module):
    command = [sys.executable, "-c", LOADED.format(module)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_only_the_extension_imports_jupyter_server():
    package = Path(nbmgpu.__file__).parent
    needing = {
        path.relative_to(package).parts[0]
        for path in package.rglob("*.py")
        if re.search(r"^\s*(from|import) (jupyter_server|tornado)", path.read_text(), re.MULTILINE)
    }
    assert needing == {"server"}
    assert not loaded_by("nbmgpu") & {"jupyter_server", "tornado"}


def test_the_extension_does_not_import_heavy_packages():
    """It is imported at server start: no torch, widgets, pandas or JupyterLab."""
    heavy = {"torch", "ipywidgets", "anywidget", "pandas", "IPython", "jupyterlab"}
    assert not loaded_by("nbmgpu.server.app") & heavy


def test_the_server_logs_the_extension(server):
    assert "nbmgpu | extension was successfully loaded" in server.log.read_text()


def test_the_installed_configuration_enables_the_extension():
    config = json.loads((REPOSITORY / "jupyter-config" / "nbmgpu.json").read_text())
    (name,) = config["ServerApp"]["jpserver_extensions"]
    module = __import__(name)
    assert module._jupyter_server_extension_points()[0]["app"].name == "nbmgpu"


def test_make_installs_the_plugins_for_jupyterlab():
    if not (Path(sys.prefix) / ".front").exists():
        pytest.skip("this environment was not made by make")
    laid = Path(sys.prefix, "share", "jupyter", "labextensions", "nbmgpu")
    assert not laid.is_symlink(), "pip would write into the source tree"
    assert (laid / "static" / "style.js").exists()
    assert (
        laid / "schemas" / "nbmgpu" / "settings.json"
    ).exists()  # without it, JupyterLab's page stays empty
