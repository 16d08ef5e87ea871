"""The panel in the widget manager of VS Code, without VS Code.

Jupyter's extension for VS Code has it from the npm package ``@vscode/jupyter-ipywidgets8``. The
page in ``vscode_webview`` uses it as the extension does, with a kernel of a Jupyter server.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from browsing import LOAD, SETUP, TRAIN, panel, state
from lab_server import REPOSITORY, Lab
from playwright.sync_api import Locator, Page, expect

pytestmark = pytest.mark.browser

SOURCE = Path(__file__).with_name("vscode_webview")
MODULES = REPOSITORY / "labextension" / "node_modules"
NBEXTENSIONS = Path(sys.prefix) / "share" / "jupyter" / "nbextensions"
"""Where the extension looks for the modules of widgets."""

SCRIPTS = (
    MODULES / "requirejs" / "require.js",
    MODULES / "@vscode" / "jupyter-ipywidgets8" / "dist" / "ipywidgets.js",
)

TRAIN_ON_CPU = TRAIN.replace("--gpus 2", "--gpus 2 --cpu")


def bundle(target: Path) -> None:
    """Write the page's script, with Jupyter's client of kernels in it."""
    command = ["node", str(MODULES / "esbuild" / "bin" / "esbuild"), str(SOURCE / "webview.js")]
    subprocess.run(
        [*command, "--bundle", "--log-level=warning", f"--outfile={target}"],
        env=os.environ | {"NODE_PATH": str(MODULES)},
        check=True,
    )


@pytest.fixture(scope="module")
def address(lab: Lab) -> str:
    """The page's address, which is on the server: Chromium lets no other page reach its kernels."""
    # JupyterLab's server serves what is in this folder as files of an extension.
    folder = lab.root / "share" / "labextensions" / "vscode_webview"
    folder.mkdir()
    for path in (SOURCE / "index.html", *SCRIPTS):
        shutil.copy(path, folder)
    (folder / "nbextensions").symlink_to(NBEXTENSIONS)
    bundle(folder / "webview.js")
    return f"{lab.url}/lab/extensions/{folder.name}/index.html"


def chart(page: Page) -> Locator:
    return panel(page).get_by_role("img", name=re.compile("^loss: .* after [0-9]+ steps"))


def test_the_panel_in_the_widget_manager_of_vscode(
    lab: Lab, address: str, page: Page, shoot: Callable[..., None]
) -> None:
    page.goto(address)
    page.evaluate("server => start(server)", {"baseUrl": f"{lab.url}/", "token": lab.token})
    assert page.evaluate("code => run(code)", f"{LOAD}\n{SETUP}") == "ok"
    page.evaluate("code => { window.training = run(code); }", TRAIN_ON_CPU.format(epochs=5000))
    expect(state(page)).to_have_text("running", timeout=60_000)
    expect(panel(page).get_by_role("row").filter(has_text="running")).to_have_count(2)
    label = chart(page).get_attribute("aria-label") or ""
    expect(chart(page)).not_to_have_attribute("aria-label", label)  # it goes on

    # The extension shows widgets on white, with the variables of a light JupyterLab, in any theme.
    for theme in ("vscode-dark", "vscode-light"):
        page.evaluate("theme => { document.body.className = theme; }", theme)
        expect(panel(page)).to_have_css("color", "rgba(0, 0, 0, 0.8)")
        expect(chart(page).locator("canvas")).to_be_visible()
        shoot(theme)

    # The kernel is asked for the log, and answers while the cell runs.
    panel(page).get_by_role("tab", name="Log of rank 1", exact=True).click()
    log = panel(page).get_by_role("region", name="Log of rank 1")
    expect(log).to_contain_text("epoch 1 done")
    panel(page).get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_text(re.compile("^■ stopped"))).to_be_visible()
    expect(panel(page)).to_have_count(0)
    assert page.evaluate("training") == "error"  # KeyboardInterrupt

    assert page.evaluate("code => run(code)", TRAIN_ON_CPU.format(epochs=3)) == "ok"
    expect(page.get_by_text(re.compile("^✓ finished"))).to_be_visible()
    assert page.evaluate("code => run(code)", "assert epoch == 2 and model is mine") == "ok"
    shoot("vscode-summaries")
