"""A comparison in JupyterLab: its progress, its table, and its button."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from browsing import LOAD, SETUP, cell_output, command, open_notebook, run_all, save
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

COMPARE = """%%mgpu compare --strategies ddp,fsdp --gpus 2 --steps 8
for epoch in range(100):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        time.sleep(0.01 * len(x))"""


def assert_fits_beside_the_sidebar(page, output):
    """Assert that a table wider than the output can be scrolled at 1440 x 900."""
    page.set_viewport_size({"width": 1440, "height": 900})
    command(page, "nbmgpu:show-runs")
    page.wait_for_timeout(1000)
    if folder := os.environ.get("NBMGPU_SHOTS"):
        page.screenshot(path=Path(folder) / "comparison-beside-sidebar.png")
    cut_off = output.locator("table").evaluate("""table => {
        for (let node = table; node && !node.matches(".jp-Notebook"); node = node.parentElement) {
            const { overflowX } = getComputedStyle(node);
            if (overflowX === "auto" || overflowX === "scroll") return false;
            if (overflowX === "hidden" && node.scrollWidth > node.clientWidth) return true;
        }
        return false;
    }""")
    assert not cut_off


def test_the_recommended_line_is_added_to_the_cell(lab, page):
    open_notebook(page, lab.write("compare.ipynb", LOAD, SETUP, COMPARE))
    run_all(page)
    output = cell_output(page, 2)
    expect(output.get_by_role("progressbar")).to_be_visible()
    button = output.get_by_role("button", name="Put this line on the cell")
    expect(button).to_be_visible(timeout=90_000)
    expect(output.get_by_role("row")).to_have_count(4)
    expect(output.get_by_role("row", name=re.compile("^one device 1"))).to_be_visible()
    assert_fits_beside_the_sidebar(page, output)
    line = output.locator("code").last.inner_text()
    assert re.fullmatch(r"%%mgpu --strategy (ddp|fsdp) --gpus 2", line)
    if folder := os.environ.get("NBMGPU_SHOTS"):
        command(page, "apputils:change-theme", theme="JupyterLab Dark")
        page.wait_for_timeout(1000)
        output.screenshot(path=Path(folder) / "comparison-dark.png")
        command(page, "apputils:change-theme", theme="JupyterLab Light")
        page.wait_for_timeout(1000)
        output.screenshot(path=Path(folder) / "comparison-light.png")

    button.click()
    expect(output.get_by_role("button", name="Line added.")).to_be_disabled()
    lines = page.locator(".jp-CodeCell").nth(2).locator(".cm-line")
    expect(lines.first).to_have_text(line)
    expect(lines.nth(1)).to_have_text("for epoch in range(100):")
    save(page)

    page.reload()
    expect(output.locator("svg").first).to_be_visible()
    expect(output.get_by_role("row")).to_have_count(4)


@pytest.mark.matrix("labextension", "nbmgpu/ui", "nbmgpu/server", "nbmgpu/report")
def test_other_lines_are_not_written(lab, page):
    forged = "from IPython.display import HTML\nHTML(\"<button class='nbmgpu-write-line' hidden "
    forged += "data-line='import os'>Click</button>\")"
    open_notebook(page, lab.write("forged.ipynb", LOAD, forged))
    run_all(page)
    button = cell_output(page, 1).get_by_role("button", name="Click")
    button.click()
    page.wait_for_timeout(300)
    expect(button).to_be_enabled()
    first = page.locator(".jp-CodeCell").nth(1).locator(".cm-line").first
    expect(first).to_have_text("from IPython.display import HTML")
