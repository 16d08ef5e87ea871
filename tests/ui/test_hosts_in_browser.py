"""Notebooks in the browser in other programs than JupyterLab: Notebook 7 and voila."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import nbformat
import pytest
from browsing import LOAD, SETUP, cell_output, open_notebook, panel, run_all
from jupyter_server_process import REPOSITORY
from lab_server import Lab
from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.browser

CELL = """\
for epoch in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()"""


def test_a_comparison_in_notebook_7(notebook7: Lab, page: Page) -> None:
    # Several ranks are faster where the time depends on the number of samples.
    slow = f"{CELL}\n        time.sleep(0.01 * len(x))"
    compare = f"%%mgpu compare --strategies ddp,fsdp --gpus 2 --steps 4\n{slow}"
    open_notebook(page, notebook7.write("compare.ipynb", LOAD, SETUP, compare))
    run_all(page)
    output = cell_output(page, 2)
    button = output.get_by_role("button", name="Put this line on the cell")
    expect(button).to_be_visible(timeout=120_000)
    expect(output.get_by_role("row")).to_have_count(4)
    line = output.locator("code").last.inner_text()
    button.click()
    first = page.locator(".jp-CodeCell").nth(2).locator(".cm-line").first
    expect(first).to_have_text(line)


@contextmanager
def voila(folder: Path, *cells: str) -> Iterator[str]:
    """Serve a notebook by voila; yield its address."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(book, folder / "book.ipynb")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    names = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "NBMGPU_RUNS")
    variables = {name: str(folder / name.lower()) for name in names}
    command = [
        sys.executable, "-m", "voila", "book.ipynb", "--no-browser", f"--port={port}",
        "--VoilaConfiguration.show_tracebacks=True",
    ]  # fmt: skip
    with (folder / "voila.log").open("w") as log:
        server = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | variables | {"PYTHONPATH": str(REPOSITORY)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        for _ in range(300):
            assert server.poll() is None, (folder / "voila.log").read_text()
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(20)


def test_voila_shows_the_summary(browser: Browser, tmp_path: Path) -> None:
    """It executes the notebook, and then shows the page."""
    pytest.importorskip("voila")
    with voila(tmp_path, LOAD, SETUP, f"%%mgpu --gpus 2 --cpu\n{CELL}") as address:
        page = browser.new_page()
        # Voila's own page asks for fonts of another host.
        page.route(lambda url: not url.startswith(address), lambda route: route.abort())
        page.goto(address, timeout=120_000)
        expect(page.get_by_text(re.compile("^✓ finished"))).to_be_visible(timeout=120_000)
        expect(page.get_by_role("img", name="loss")).to_be_visible()
        expect(panel(page)).to_have_count(0)
        page.close()
