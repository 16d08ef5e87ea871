"""Starts a real JupyterLab or Notebook 7 with separate settings and folders."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import nbformat

REPOSITORY = Path(__file__).parents[1]
EXTENSION = REPOSITORY / "nbmgpu" / "labextension"
QUIET = {"fetchNews": "false", "checkForUpdates": False}

Application = Literal["lab", "notebook"]
CLASSES = {"lab": "LabApp", "notebook": "JupyterNotebookApp"}
MODULES = {"lab": "jupyterlab", "notebook": "notebook"}
ADDRESSES = {"lab": "lab/tree", "notebook": "notebooks"}


class Lab:
    """A running server and its folders."""

    def __init__(self, application: Application, url: str, token: str, root: Path) -> None:
        self.application, self.url, self.token, self.root = application, url, token, root
        self.folder = root / "notebooks"

    def write(self, name: str, *cells: str) -> str:
        """Write a notebook and return its URL."""
        book = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        )
        nbformat.write(book, self.folder / name)
        return f"{self.url}/{ADDRESSES[self.application]}/{name}?token={self.token}&reset"

    def read(self, name: str) -> Any:
        """Return the saved notebook."""
        for _ in range(100):
            text = (self.folder / name).read_text()
            if text.endswith("}\n"):
                break
            time.sleep(0.05)  # the server truncates the file, then writes it
        return nbformat.reads(text, as_version=4)


@contextlib.contextmanager
def serving(application: Application, root: Path, *, extended: bool = True) -> Iterator[Lab]:
    """Start the server, with the built extension; kernels can import the tests' helpers.

    The server extension is enabled only if ``extended``.
    """
    _create_folders(root, extended)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    lab = Lab(application, f"http://127.0.0.1:{port}", secrets.token_hex(16), root)
    name = CLASSES[application]
    command = [
        sys.executable, "-m", MODULES[application], "--no-browser", "--allow-root",
        f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={lab.token}",
        f"--ServerApp.root_dir={lab.folder}", "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        f"--{name}.expose_app_in_browser=True", f"--{name}.workspaces_dir={root / 'workspaces'}",
        f"--{name}.user_settings_dir={root / 'settings'}",
    ]  # fmt: skip
    with (root / "server.log").open("w") as log:
        server = subprocess.Popen(
            command, env=_environment(root), stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait_for(f"{lab.url}/api?token={lab.token}", server, root / "server.log")
        yield lab
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(20)


def _create_folders(root: Path, extended: bool) -> None:
    """Create the folders, with the extension where an installed one would be."""
    settings = root / "settings" / "@jupyterlab" / "apputils-extension"
    extensions = root / "share" / "labextensions"
    config = root / "config" / "jupyter_server_config.d"
    # site-packages: on sys.path of the server and of kernels, for packages that a test writes.
    for folder in (root / "notebooks", root / "site-packages", settings, extensions, config):
        folder.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(QUIET))
    (extensions / "nbmgpu").symlink_to(EXTENSION)
    part = {"ServerApp": {"jpserver_extensions": {"nbmgpu": extended}}}
    (config / "nbmgpu.json").write_text(json.dumps(part))


def _environment(root: Path) -> dict[str, str]:
    return os.environ | {
        "JUPYTER_PATH": str(root / "share"),
        # Takes precedence over installed configuration.
        "JUPYTER_CONFIG_PATH": str(root / "config"),
        "JUPYTER_CONFIG_DIR": str(root / "config"),
        "JUPYTER_DATA_DIR": str(root / "data"),
        "JUPYTER_RUNTIME_DIR": str(root / "runtime"),
        "IPYTHONDIR": str(root / "ipython"),
        "NBMGPU_RUNS": str(root / "runs"),
        "PYTHONPATH": os.pathsep.join(
            [str(REPOSITORY), str(REPOSITORY / "tests"), str(root / "site-packages")]
        ),
    }


def _wait_for(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        if server.poll() is not None:
            break
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=2):
            return
        time.sleep(0.1)
    raise RuntimeError(log.read_text())
