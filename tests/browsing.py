"""Helpers for browser tests of JupyterLab and Notebook 7."""

import os
import shutil

from playwright.sync_api import expect

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

LOAD = "%load_ext nbmgpu"
SETUP = """
import time, torch, torch.nn.functional as F
torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
mine = model
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,)))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
"""
TRAIN = """%%mgpu --strategy ddp --gpus 2
for epoch in range({epochs}):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
    print("epoch", epoch, "done")
"""


def open_notebook(page, url):
    page.goto(url)
    page.locator(".jp-Notebook").wait_for()
    # The indicator is "idle" even without a kernel: wait for the name first.
    expect(page.locator(".jp-KernelName")).to_have_text("Python 3 (ipykernel)")
    expect(page.locator(".jp-Notebook-ExecutionIndicator")).to_have_attribute("data-status", "idle")


def run_all(page):
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()


def open_and_run(page, url):
    open_notebook(page, url)
    run_all(page)
    expect(state(page)).to_have_text("running")


def command(page, name, **arguments):
    """Execute a command of the application, as its menus do."""
    page.evaluate(
        "([name, args]) => void window.jupyterapp.commands.execute(name, args)", [name, arguments]
    )


def cell_output(page, number):
    """The output area of code cell ``number``, counted from 0."""
    return page.locator(".jp-CodeCell").nth(number).locator(".jp-Cell-outputArea")


def save(page):
    """Save the current notebook, and return when the server has written it."""
    page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")


def panel(page):
    return page.get_by_role("region", name="Run on several ranks")


def state(page):
    return panel(page).get_by_role("status")
