"""axe-core finds nothing serious in the views, in the light and in the dark theme.

Keyboard use and accessible names are tested with each view.
"""

import pytest
from browsing import command, open_notebook, run_all
from lab_server import REPOSITORY
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

AXE = REPOSITORY / "labextension" / "node_modules" / "axe-core" / "axe.min.js"

SETUP = """
%load_ext nbmgpu
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
X = torch.randn(64, 8)
loader = DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), batch_size=8)
model = nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
"""

TRAIN = """%%mgpu --gpus 2 --cpu --name "{name}" --tag sweep
for x, y in loader:
    loss = nn.functional.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
{then}
"""

VIEWS = {
    "sidebar": ".nbmgpu-Sidebar",
    "run": ".nbmgpu-RunTab .nbmgpu-view[aria-label='Run on several ranks']",
    "comparison": ".nbmgpu-view[aria-label='Comparison of runs']",
    "picker": ".nbmgpu-picker",
}

CHECK = """async selector => {
    const found = await axe.run(selector, {runOnly: ["wcag2a", "wcag2aa", "best-practice"]});
    return found.violations
        .filter(({impact}) => impact === "serious" || impact === "critical")
        .flatMap(({id, nodes}) => nodes.map(node => `${id}: ${node.html.slice(0, 160)} `
            + node.any.concat(node.all).map(check => check.message).join("; ")));
}"""


def violations(page, view):
    expect(page.locator(VIEWS[view]).first).to_be_visible()
    return [f"{view}: {text}" for text in page.evaluate(CHECK, VIEWS[view])]


def with_faint_text(page):
    """What is found while a text is as good as invisible: the test of the test."""
    faint = page.add_style_tag(content=".nbmgpu-RunCard-where { color: #ddd; }")
    found = violations(page, "sidebar")
    faint.evaluate("node => node.remove()")
    return found


def test_nothing_serious_is_found(lab, page):
    cells = [TRAIN.format(name="good", then=""), TRAIN.format(name="bad", then="1 / 0")]
    open_notebook(page, lab.write("two.ipynb", SETUP, *cells))
    command(page, "nbmgpu:show-runs")
    run_all(page)
    sidebar = page.get_by_role("region", name="Devices and runs")
    for tone in ("good", "bad"):
        card = sidebar.locator(f".nbmgpu-RunCard[data-tone={tone}]")
        expect(card).to_have_count(1, timeout=60_000)
    page.add_script_tag(path=AXE)
    # The body has no height of its own, from which axe concludes that nothing is visible.
    page.add_style_tag(content="body { height: 100vh; }")
    assert any("color-contrast" in text for text in with_faint_text(page))
    found = []
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        command(page, "apputils:change-theme", theme=theme)
        page.wait_for_timeout(1000)  # until it is rendered
        found += violations(page, "sidebar")
        command(page, "nbmgpu:open-run")
        found += violations(page, "run")
        as_table = page.locator(VIEWS["run"]).get_by_role("button", name="Table", exact=True)
        as_table.first.click()
        found += violations(page, "run")
        as_table.first.click()
        command(page, "nbmgpu:compare-runs")
        expect(page.locator(VIEWS["comparison"]).locator("tbody tr").first).to_be_visible()
        found += violations(page, "comparison")
        command(page, "application:close")
        command(page, "docmanager:open", path="two.ipynb")
        expect(page.locator(".jp-Notebook")).to_be_visible()
        command(page, "nbmgpu:pick-strategy")
        found += violations(page, "picker")
        page.keyboard.press("Escape")
    assert not found, "\n".join(found)
