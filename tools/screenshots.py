"""Take the pictures of docs/images again, of real runs in a real JupyterLab, with Chromium.

    python tools/screenshots.py [NAME ...]

Needs ``make chromium`` and a built front end.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from browsing import CHROMIUM, FLAGS, command, open_and_run, open_notebook, panel, run_all, state  # noqa: E402
from lab_server import Lab, serving  # noqa: E402

IMAGES = ROOT / "docs" / "images"

DATA = """\
%load_ext nbmgpu
import time, nbmgpu, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from sklearn.datasets import load_digits

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
labels = torch.tensor(digits.target)
loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True)
"""

MODEL = """\
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, {classes}))
optimizer = torch.optim.{optimizer}
criterion = nn.CrossEntropyLoss()
"""

TRAIN = """\
%%mgpu --strategy ddp --gpus 2 --cpu{options}
for epoch in range({epochs}):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step(){pause}
    with torch.no_grad():
        accuracy = (model(images).argmax(1) == labels).float().mean().item()
    nbmgpu.log(accuracy=accuracy)
    print(f"epoch {{epoch}}: accuracy {{accuracy:.3f}}")
"""

ADAM = "Adam(model.parameters(), lr=0.003)"
PAUSE = "\n        time.sleep(0.02)  # so that there is something to see"


def train(epochs: int, options: str = "", pause: str = "") -> str:
    """Return the cell that trains."""
    return TRAIN.format(epochs=epochs, options=options, pause=pause)


def model(classes: int = 10, optimizer: str = ADAM) -> str:
    """Return the cell that makes a model."""
    return MODEL.format(classes=classes, optimizer=optimizer)


def run(lab: Lab, page: Page) -> None:
    """A cell that trains, with its panel."""
    page.set_viewport_size({"width": 1400, "height": 1180})
    open_and_run(page, lab.write("digits.ipynb", DATA, model(), train(12, pause=PAUSE)))
    expect(page.get_by_text("epoch 5 of 12")).to_be_visible()
    page.locator(".jp-CodeCell").nth(2).locator(".jp-InputArea").scroll_into_view_if_needed()
    panel(page).get_by_role("tab", name="all").click()
    page.locator(".jp-CodeCell").nth(2).evaluate("cell => cell.scrollIntoView({block: 'start'})")
    time.sleep(2)


def failure(lab: Lab, page: Page) -> None:
    """A cell that fails: a model with too few classes."""
    page.set_viewport_size({"width": 1400, "height": 880})
    open_notebook(page, lab.write("failure.ipynb", DATA, model(classes=9), train(2)))
    run_all(page)
    expect(page.get_by_text("Likely cause")).to_be_visible()
    page.locator(".jp-CodeCell").nth(2).evaluate("cell => cell.scrollIntoView({block: 'start'})")
    time.sleep(1)


def tab(lab: Lab, page: Page) -> None:
    """A run in its own tab, beside the sidebar, in the dark theme."""
    options = ' --name "first try" --tag digits'
    open_notebook(page, lab.write("tab.ipynb", DATA, model(), train(40, options, PAUSE)))
    command(page, "apputils:change-theme", theme="JupyterLab Dark")
    command(page, "nbmgpu:show-runs")
    run_all(page)
    expect(state(page)).to_have_text("running")
    page.locator(".nbmgpu-RunCard").first.get_by_text("first try").click()
    expect(page.get_by_text("epoch 5 of 40").last).to_be_visible()
    time.sleep(2)


def compare(lab: Lab, page: Page) -> None:
    """Two runs compared."""
    cells = [DATA]
    for name, optimizer in (("Adam", ADAM), ("SGD", "SGD(model.parameters(), lr=0.1)")):
        options = f" --name {name} --tag digits"
        one = f"{train(6, options).partition(chr(10))[0]}\n{model(optimizer=optimizer)}"
        cells.append(one + train(6).partition("\n")[2])
    open_notebook(page, lab.write("sweep.ipynb", *cells))
    command(page, "nbmgpu:show-runs")
    run_all(page)
    finished = page.locator(".nbmgpu-RunCard", has_text="finished")
    expect(finished).to_have_count(2)
    for card in finished.all():
        card.get_by_role("checkbox").check()
    page.get_by_role("button", name="Compare").first.click()
    expect(page.get_by_text("Horizontal axis")).to_be_visible()
    page.get_by_text("Cell of ").click()
    time.sleep(1)


PICTURES: dict[str, Callable[[Lab, Page], None]] = {
    "run": run, "failure": failure, "tab": tab, "compare": compare,
}  # fmt: skip


def main(names: list[str]) -> None:
    """Take the pictures of some names, or all."""
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for name in names or PICTURES:
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            with tempfile.TemporaryDirectory() as root, serving("lab", Path(root) / "lab") as lab:
                PICTURES[name](lab, page)
                page.screenshot(path=IMAGES / f"{name}.png")
            page.close()
            print(name, flush=True)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
