"""A window of 800 pixels, and runs with long names: nothing is too wide, overlaps or scrolls."""

import re

import pytest
from browsing import command, open_notebook, panel, run_all, state
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

NAME = "fine-tuning of the whole encoder, cosine schedule, learning rate 0.0003, take 12"
LONG = "validation_of_the_second_domain/mean_per_class_accuracy_with_test_time_augmentation"

STAGE = f"""
import asyncio
from staged import StagedRun
from nbmgpu.ui.panel import RunPanel

runs = [StagedRun(4, id=f"20260101-12000{{k}}-abcd") for k in range(2)]
for staged in runs:
    staged.run.label(name={NAME!r}, tags=["kept", "a-tag-of-twenty-four-char"])
    staged.start()
    for name in ("loss", "samples/s", {LONG!r}, "val/" + {LONG!r}, "lr"):
        staged.points(name, list(range(1, 50)), [1e5 / k for k in range(1, 50)])
    staged.notice("A notice about " + "x" * 60 + " that is longer than a line of the panel. " * 3)
    for rank in range(4):
        staged.heartbeat(rank, 50)
        staged.log(rank, "a long line of output " * 30 + "\\n")
    staged.progress(50, 100, label="a progress bar with a label that is long, " * 3)
runs[1].finish()
panel = RunPanel(runs[0].run)
display(panel)
for _ in range(2000):
    runs[0].run.poll()
    panel.refresh()
    await asyncio.sleep(0.1)
"""

CHECK = """root => {
    const found = [];
    const right = root.getBoundingClientRect().right + 1;
    const isClipped = node => {
        for (let at = node.parentElement; at && at !== root.parentElement; at = at.parentElement) {
            if (getComputedStyle(at).overflowX !== "visible") return true;
        }
        return false;
    };
    const name = node => `${node.tagName} .${node.className} "${node.textContent.slice(0, 40)}"`;
    for (const node of root.querySelectorAll("*")) {
        const box = node.getBoundingClientRect();
        if (box.width && box.right > right && !isClipped(node)) {
            found.push(`${Math.round(box.right - right)} px too wide: ${name(node)}`);
        }
    }
    if (root.scrollWidth > root.clientWidth + 1) found.push(`scrolls sideways: ${name(root)}`);
    const controls = [...root.querySelectorAll("button, a, input, select, summary")].filter(
        node => node.checkVisibility({checkOpacity: true}) && !node.matches(".nbmgpu-chart-image"));
    controls.forEach((one, index) => controls.slice(index + 1).forEach(other => {
        if (one.contains(other) || other.contains(one)) return;
        const [a, b] = [one.getBoundingClientRect(), other.getBoundingClientRect()];
        const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (width > 1 && height > 1) found.push(`overlap: ${name(one)}, ${name(other)}`);
    }));
    return found;
}"""


def problems(page, name, root):
    page.wait_for_timeout(500)  # until charts have their size
    return [f"{name}: {text}" for text in root.evaluate(CHECK)]


def test_at_800_pixels_nothing_is_cut_off_or_scrolls_sideways(lab, page, shoot):
    page.set_viewport_size({"width": 800, "height": 900})
    open_notebook(page, lab.write("narrow.ipynb", STAGE))
    run_all(page)
    expect(state(page)).to_have_text("running")
    view = panel(page)
    expect(view.get_by_role("figure")).to_have_count(6)
    found = problems(page, "panel", view)
    shoot("narrow-panel")
    view.get_by_role("tab", name="Log of rank 0", exact=True).click()
    view.get_by_role("button", name="Table", exact=True).click()
    expect(view.get_by_role("table", name=re.compile("^Values"))).to_contain_text(LONG)
    found += problems(page, "panel with table and log", view)
    shoot("narrow-table")
    command(page, "nbmgpu:show-runs")
    sidebar = page.get_by_role("region", name="Devices and runs")
    expect(sidebar.locator(".nbmgpu-RunCard")).to_have_count(2)
    found += problems(page, "sidebar", sidebar)
    shoot("narrow-sidebar")
    found += problems(page, "panel beside the sidebar", view)
    command(page, "nbmgpu:open-run", id="20260101-120001-abcd")
    tab = page.locator(".nbmgpu-RunTab").get_by_role("region", name="Run on several ranks")
    expect(tab.get_by_role("figure").first).to_be_visible()
    found += problems(page, "run", tab)
    shoot("narrow-run")
    command(page, "nbmgpu:compare-runs")
    comparison = page.get_by_role("region", name="Comparison of runs")
    expect(comparison.locator("table tbody tr")).to_have_count(2)
    entry = comparison.locator(".nbmgpu-chart-entry").first
    assert entry.locator(".nbmgpu-chart-entry-value").bounding_box()["width"] > 20
    found += problems(page, "comparison", comparison)
    shoot("narrow-comparison")
    assert not found, "\n".join(found)
    # The test of the test: what is too wide is found.
    page.add_style_tag(content=".nbmgpu-chart-name { min-width: 900px; }")
    assert problems(page, "comparison", comparison)
