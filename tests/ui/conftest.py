"""A real JupyterLab and a real Chromium, one of each for a module."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

REPOSITORY = Path(__file__).parents[2]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

expect.set_options(timeout=30_000)


class Lab:
    """A running server and the folder that it shows."""

    def __init__(self, url: str, token: str, folder: Path) -> None:
        self.url, self.token, self.folder = url, token, folder

    def write(self, name: str, *cells: str) -> str:
        """Write a notebook and return the address that opens it."""
        book = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        )
        nbformat.write(book, self.folder / name)
        return f"{self.url}/lab/tree/{name}?token={self.token}&reset"

    def read(self, name: str) -> Any:
        """Return the notebook as it was saved last."""
        return nbformat.read(self.folder / name, as_version=4)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """JupyterLab with settings and folders of its own; kernels can import the tests' helpers."""
    folder = tmp_path_factory.mktemp("notebooks")
    home = tmp_path_factory.mktemp("home")
    quiet = home / "settings" / "@jupyterlab" / "apputils-extension"
    quiet.mkdir(parents=True)
    (quiet / "notification.jupyterlab-settings").write_text(
        json.dumps({"fetchNews": "false", "checkForUpdates": False})
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = secrets.token_hex(16)
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "IPYTHONDIR": str(home / "ipython"),
        "NBMGPU_RUNS": str(home / "runs"),
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")]),
    }
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root",
        f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={folder}", "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.expose_app_in_browser=True", f"--LabApp.workspaces_dir={home / 'workspaces'}",
        f"--LabApp.user_settings_dir={home / 'settings'}",
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    with (home / "lab.log").open("w") as log:
        server = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait_for(f"{url}/api?token={token}", server, home / "lab.log")
        yield Lab(url, token, folder)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(20)


def _wait_for(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        if server.poll() is not None:
            break
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=2):
            return
        time.sleep(0.1)
    raise RuntimeError(log.read_text())


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, without its own conversations."""
    if not Path(CHROMIUM).exists():
        pytest.skip("there is no Chromium; sudo apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh page.  It reaches the server and nothing else: asking for more fails the test."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    asked: list[str] = []

    def refuse(route: Any) -> None:
        asked.append(route.request.url)
        route.abort()

    context.route(
        lambda url: not url.startswith(("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:")),
        refuse,
    )
    page = context.new_page()
    page.set_default_timeout(30_000)
    yield page
    context.close()
    assert asked == []
