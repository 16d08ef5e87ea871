"""100,000 points and 64 ranks: what the browser has to draw is bounded, whatever the run has."""

import pytest
from browsing import open_notebook, panel, run_all, state
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

RANKS, POINTS = 64, 100_000

STAGE = """
import asyncio
from staged import StagedRun
from nbmgpu.ui.panel import RunPanel

staged = StagedRun({ranks})
run = staged.run
staged.start()
for name in ("loss", "val/loss", "lr"):
    for first in range(0, {points}, 5000):
        count = min(5000, {points} - first)
        staged.points(name, list(range(first, first + count)), [step % 7 for step in range(count)])
for step in (1, 2, 3):
    for rank in range({ranks}):
        staged.heartbeat(rank, step)
run.poll()
panel = RunPanel(run)
display(panel)
await asyncio.sleep(60)
"""

COUNT = """view => {
    const all = [...view.querySelectorAll("*")];
    return {
        nodes: all.length,
        // Each one makes the browser's work for a frame larger, also if nothing in it changes.
        clipping: all.filter(node => getComputedStyle(node).overflowX !== "visible").length,
    };
}"""


def counted(lab, page, ranks, points):
    """What the panel of such a run consists of."""
    stage = STAGE.format(ranks=ranks, points=points)
    open_notebook(page, lab.write(f"{ranks}-ranks.ipynb", stage))
    run_all(page)
    expect(state(page)).to_have_text("running", timeout=60_000)
    view = panel(page)
    rows = view.get_by_role("table", name="Ranks").locator("tbody tr")
    expect(rows).to_have_count(ranks)
    plot = view.get_by_role("figure").filter(has_text="loss").first.get_by_role("img")
    expect(plot.locator("canvas")).to_be_visible()
    assert f"after {points} steps" in plot.get_attribute("aria-label")
    return view.evaluate(COUNT)


def curve_requests(page):
    """The messages to kernels that request a part of a curve, as they are sent."""
    requests = []

    def keep(payload):
        if '"curve"' in (payload if isinstance(payload, str) else payload.decode(errors="replace")):
            requests.append(payload)

    page.on("websocket", lambda socket: socket.on("framesent", keep))
    return requests


def test_nodes_grow_with_ranks_only_and_none_of_them_clips(lab, page):
    requests = curve_requests(page)
    small = counted(lab, page, 2, 100)
    large = counted(lab, page, RANKS, POINTS)
    assert large["nodes"] - small["nodes"] < 25 * (RANKS - 2)
    assert large["clipping"] <= small["clipping"] + 5
    # Charts share a selection. It zooms all of them once: each line is requested once.
    view = panel(page)
    plot = view.get_by_role("figure").filter(has_text="loss").first.get_by_role("img")
    box = plot.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 120, box["y"] + 60, steps=5)
    page.mouse.up()
    expect(view.get_by_role("button", name="Whole run")).to_be_visible()
    page.wait_for_timeout(1000)
    assert len(requests) == 3
