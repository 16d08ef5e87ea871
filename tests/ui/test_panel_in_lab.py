"""What a person sees and does: the panel in JupyterLab, and what a saved notebook keeps."""

import re

import pytest
from browsing import open_and_run, panel, save, state
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

# A run that is played in the kernel.  The cell awaits, so the kernel hears the panel meanwhile.
PLAY = """
import asyncio, math
from staged import StagedRun
from nbmgpu.ui.panel import RunPanel
from nbmgpu.ui.summary import summary_html, summary_text

staged = StagedRun(2)
run = staged.run
clicks = []

panel = RunPanel(run)
panel.on_stop(clicks.append)
handle = display(panel, display_id=True)
staged.start()
staged.notice("dropout draws <b>other</b> numbers")
for step in range({steps}):
    for rank in range(2):
        staged.points("loss", [step], [math.exp(-step / 20)], rank)
        staged.log(rank, f"rank {{rank}} at step {{step}}\\n")
    staged.progress(step + 1, {steps})
    run.poll()
    panel.refresh()
    if True in clicks:
        break
    await asyncio.sleep(0.05)
staged.finish()
run.poll()
panel.refresh()
print("clicks:", clicks)
handle.update({{"text/html": summary_html(run), "text/plain": summary_text(run)}}, raw=True)
"""


def curve(page):
    return panel(page).get_by_role("img", name=re.compile("^loss: .* after [0-9]+ steps"))


def steps(page):
    return int(re.search("after ([0-9]+) steps", curve(page).get_attribute("aria-label"))[1])


def force_stop(page):
    panel(page).get_by_role("button", name="Stop").click()
    panel(page).get_by_role("button", name="Force stop").click()


def test_is_live_and_leaves_a_summary_that_the_file_keeps(lab, page):
    open_and_run(page, lab.write("live.ipynb", PLAY.format(steps=60)))
    expect(curve(page).locator("polyline")).to_be_attached()
    before = steps(page)
    expect(curve(page)).not_to_have_attribute("aria-label", re.compile(rf"after {before} steps"))
    assert steps(page) > before
    bar = panel(page).get_by_role("progressbar", name="epoch 1")
    expect(bar).to_have_attribute("aria-valuetext", re.compile("^[1-9][0-9]* / 60$"))
    expect(panel(page).get_by_role("list", name="Notices")).to_have_text(
        "dropout draws <b>other</b> numbers"
    )
    expect(page.get_by_text("✓ finished")).to_be_visible()
    expect(page.locator(".jp-OutputArea svg polyline")).to_be_visible()
    expect(panel(page)).to_have_count(0)
    save(page, lab, "live.ipynb")
    (shown, *_) = [o for o in lab.read("live.ipynb").cells[0].outputs if "data" in o]
    assert set(shown.data) == {"text/html", "text/plain"}
    assert "<polyline" in shown.data["text/html"]
    assert "finished  ddp on 2 ranks (cpu)" in shown.data["text/plain"]


def test_stop_asks_first_and_then_forces(lab, page):
    open_and_run(page, lab.write("stop.ipynb", PLAY.format(steps=2000)))
    stop = panel(page).get_by_role("button", name="Stop", exact=True)
    stop.dblclick()  # a double click is one wish
    force = panel(page).get_by_role("button", name="Force stop")
    expect(force).to_be_visible()
    page.wait_for_timeout(300)
    expect(force).to_be_enabled()
    force.click()
    expect(page.get_by_text("clicks: [False, True]")).to_be_visible()


def test_logs_of_ranks_by_mouse_and_keyboard(lab, page):
    open_and_run(page, lab.write("logs.ipynb", PLAY.format(steps=2000)))
    ranks = panel(page).get_by_role("group", name=re.compile("^Ranks"))
    rank_1 = ranks.get_by_role("button", name="Log of rank 1, running")
    log = panel(page).get_by_role("region", name=re.compile("^Log of rank"))
    expect(log).to_have_count(0)
    rank_1.click()
    expect(rank_1).to_have_attribute("aria-expanded", "true")
    expect(log).to_contain_text("rank 1 at step")
    # The keys do not reach the notebook, where Enter edits and arrows walk from cell to cell.
    page.keyboard.press("ArrowLeft")
    expect(ranks.get_by_role("button", name="Log of rank 0, running")).to_be_focused()
    page.keyboard.press("Enter")
    expect(log).to_contain_text("rank 0 at step")
    page.keyboard.press("Enter")
    expect(log).to_have_count(0)
    force_stop(page)


def test_a_reloaded_page_has_the_whole_curve(lab, page):
    url = lab.write("reload.ipynb", PLAY.format(steps=2000))
    open_and_run(page, url)
    panel(page).get_by_role("button", name="Log of rank 1").click()
    expect(curve(page).locator("polyline")).to_be_attached()
    before = steps(page)
    save(page, lab, "reload.ipynb")
    page.goto(url.replace("&reset", ""))
    expect(state(page)).to_have_text("running")
    assert steps(page) >= before
    points = curve(page).locator("polyline").get_attribute("points")
    assert len(points.split()) >= before
    expect(panel(page).get_by_role("region", name="Log of rank 1")).to_contain_text("rank 1 at")
    force_stop(page)
