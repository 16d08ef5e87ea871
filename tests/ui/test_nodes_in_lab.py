"""Ranks grouped by node, at 1,024 ranks: in the panel and in the run's tab."""

import re

import pytest
from browsing import command, open_notebook, panel, run_all, state
from lab_server import REPOSITORY
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

RANKS, NODES = 1024, 128

STAGE = f"""
import asyncio, sys
sys.path.append({str(REPOSITORY / "tools")!r})
from simulated_run import SimulatedRun
from nbmgpu.ui.panel import RunPanel

simulated = SimulatedRun({RANKS}, {NODES})
simulated.start()
simulated.advance(2)
run = simulated.run
run.poll()
panel = RunPanel(run)
clicks = []
panel.on_stop(clicks.append)
display(panel)
while not clicks:
    simulated.advance()
    run.poll()
    panel.refresh()
    await asyncio.sleep(1)
simulated.fail({RANKS - 3})
run.poll()
panel.refresh(now=True)
print("run", run.id)
"""


def rows(view):
    return view.get_by_role("table", name="Ranks").locator("tbody tr")


def node(view, name):
    return view.get_by_role("button", name=name, exact=True)


def first_step(view):
    return rows(view).first.locator(".nbmgpu-rank-step").inner_text()


def test_each_node_has_a_row_that_unfolds_to_its_ranks(lab, page, shoot):
    open_notebook(page, lab.write("nodes.ipynb", STAGE))
    run_all(page)
    view = panel(page)
    expect(state(page)).to_have_text("running")
    expect(view).to_contain_text(f"ddp on {RANKS} ranks of {NODES} nodes")
    expect(rows(view)).to_have_count(NODES)
    expect(rows(view).nth(1)).to_contain_text("node001ranks 8 to 15running")
    memory = view.get_by_role("meter", name="Most memory of a rank on node 1", exact=True)
    expect(memory).to_have_text(re.compile("GiB"))
    # Every node has its row, but no rank has one until its node is unfolded: by the keyboard.
    node(view, "node000").focus()
    page.keyboard.press("ArrowDown")
    expect(node(view, "node001")).to_be_focused()
    expect(node(view, "node001")).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("Enter")
    expect(node(view, "node001")).to_have_attribute("aria-expanded", "true")
    expect(rows(view)).to_have_count(NODES + 8)
    expect(rows(view).nth(2)).to_contain_text("rank 8node001, cuda:0")
    shoot("nodes")
    # Rows of nodes and ranks follow the run.
    before = first_step(view)
    expect(rows(view).first.locator(".nbmgpu-rank-step")).not_to_have_text(before)
    rank_step = rows(view).nth(2).locator(".nbmgpu-rank-step")
    before = rank_step.inner_text()
    expect(rank_step).not_to_have_text(before)
    # A rank's log opens from its row; of 1,024 ranks only some have a tab.
    view.get_by_role("button", name="Log of rank 9, running").click()
    expect(view.get_by_role("tab")).to_have_text(["all", "rank 0", "rank 9"])
    expect(view.get_by_role("region", name="Log of rank 9")).to_contain_text("rank 9 at step")
    view.get_by_role("spinbutton", name="Rank whose log is shown").press_sequentially("1000")
    page.keyboard.press("Enter")
    expect(view.get_by_role("region", name="Log of rank 1000")).to_contain_text("rank 1000 at")
    node(view, "node001").focus()
    page.keyboard.press("Space")
    expect(rows(view)).to_have_count(NODES)
    # One of 128 nodes has a problem, and can be shown alone.
    view.get_by_role("button", name="Stop", exact=True).click()
    problems = view.get_by_role("button", name="Only nodes with problems (1)")
    problems.click()
    expect(problems).to_have_attribute("aria-pressed", "true")
    expect(rows(view)).to_have_count(1)
    expect(rows(view)).to_contain_text("7 running, 1 failed (exit 1)")
    # The run's tab shows the same, from the server.
    printed = page.get_by_text(re.compile("^run [0-9]")).inner_text()
    command(page, "nbmgpu:open-run", id=printed.split()[1])
    tab = page.locator(".nbmgpu-RunTab").get_by_role("region", name="Run on several ranks")
    expect(rows(tab)).to_have_count(NODES)
    node(tab, "node127").click()
    expect(rows(tab)).to_have_count(NODES + 8)
    expect(rows(tab).nth(NODES + 5)).to_contain_text(re.compile("rank 1021.*failed"))
