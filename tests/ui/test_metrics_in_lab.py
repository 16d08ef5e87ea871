"""The metrics of a run in JupyterLab: as charts with marks, as a table, and as CSV."""

import re

import pytest
from browsing import command, open_notebook, panel, run_all, state
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

STAGE = """
import asyncio
from staged import StagedRun
from nbmgpu.ui.panel import RunPanel

staged = StagedRun(2)
run = staged.run
panel = RunPanel(run)
display(panel)
staged.start()
print("run", run.id)
losses = [3.0, 2.0, 0.5, 1.0] + [1.5] * {more}
staged.points("loss", list(range(1, len(losses) + 1)), losses)
staged.points("train/acc", [1, 2, 3, 4], [0.1, 0.2, 0.4, 0.3])
staged.points("val/acc", [2, 4], [0.15, 0.35])
staged.points("few", [1, 2], [1.0, 2.0])
staged.progress(1, 2, train_step=1)
staged.progress(2, 2, train_step=2)
staged.progress(2, 2, epoch=2, train_step=4)
for step in range(5, 2000):
    await asyncio.sleep(0.1)
    run.poll()
    panel.refresh()
"""


def staged_panel(lab, page, name, more=0):
    open_notebook(page, lab.write(name, STAGE.format(more=more)))
    run_all(page)
    expect(state(page)).to_have_text("running")
    return panel(page)


def run_tab(page):
    printed = page.get_by_text(re.compile("^run [0-9]")).inner_text()
    command(page, "nbmgpu:open-run", id=printed.split()[1])
    return page.locator(".nbmgpu-RunTab").get_by_role("region", name="Run on several ranks")


def chart(view, name):
    return view.get_by_role("figure").filter(has_text=re.compile(f"^{name}"))


def check_table(page, view):
    toggle = view.get_by_role("button", name="Table", exact=True)
    expect(toggle).to_have_attribute("aria-pressed", "false")
    toggle.focus()
    page.keyboard.press("Enter")
    expect(toggle).to_have_attribute("aria-pressed", "true")
    table = view.get_by_role("table", name="Values of each metric in this run")
    heads = ["Metric", "Last", "Lowest", "Highest", "Mean of epoch 2", "Points"]
    expect(table.get_by_role("columnheader")).to_have_text(heads)
    expect(table.locator("tbody th")).to_have_text(["loss", "train/acc", "val/acc", "few"])
    loss = table.get_by_role("row").filter(has_text="loss").get_by_role("cell")
    expect(loss).to_have_text(
        ["1", "0.5, the best one at step 3", re.compile("^3.* at step 1$"), "0.75", "4"]
    )
    expect(loss.nth(1)).to_have_attribute("data-best", "")
    expect(view.get_by_role("figure")).to_have_count(0)
    view.get_by_role("region", name="Metrics", exact=True).focus()  # scrolls by arrow keys
    toggle.click()
    expect(chart(view, "loss")).to_be_visible()
    expect(table).to_have_count(0)


def check_csv(page, view):
    with page.expect_download() as download:
        view.get_by_role("button", name="Download all metrics as CSV").click()
    assert re.fullmatch(r"2[0-9]{7}-.*-metrics\.csv", download.value.suggested_filename)
    return download.value.path().read_text().splitlines()


def test_metrics_are_shown_as_a_table_and_saved_as_csv(lab, page, shoot):
    view = staged_panel(lab, page, "metrics.ipynb")
    rows = [
        "step,epoch,loss,train/acc,val/acc,few",
        "1,0.5,3.0,0.1,,1.0",
        "2,1,2.0,0.2,0.15,2.0",
        "3,1.5,0.5,0.4,,",
        "4,2,1.0,0.3,0.35,",
    ]
    check_table(page, view)
    assert check_csv(page, view) == rows
    tab = run_tab(page)
    check_table(page, tab)
    assert check_csv(page, tab) == rows
    tab.get_by_role("button", name="Table", exact=True).click()
    shoot("metrics-table")


def test_all_points_of_a_long_run_are_saved_from_the_panel(lab, page):
    view = staged_panel(lab, page, "long.ipynb", more=20_000)
    expect(chart(view, "loss").get_by_role("img")).to_have_attribute(
        "aria-label", re.compile("after 20004 steps")
    )
    lines = check_csv(page, view)
    assert len(lines) == 20_005
    assert lines[-1] == "20004,,1.5,,,"


def test_the_lowest_and_the_highest_value_are_marked(lab, page, shoot):
    view = staged_panel(lab, page, "marks.ipynb")
    plot = chart(view, "loss").get_by_role("img")
    expect(plot).to_have_attribute(
        "aria-label", "loss: 1 after 4 steps; lowest 0.5 at 3, highest 3 at 1"
    )
    plot.focus()
    for text in ("3 (highest) at 1", "2 at 2", "0.5 (lowest) at 3", "1 at 4"):
        page.keyboard.press("ArrowRight")
        expect(chart(view, "loss").locator(".nbmgpu-chart-value")).to_have_text(text)
    # Each of two lines has marks; two points have none.
    expect(chart(view, "acc").locator(".nbmgpu-chart-name")).to_have_attribute(
        "title", "acc\ntrain/acc: lowest 0.1 at 1, highest 0.4 at 3"
    )
    few = chart(view, "few").get_by_role("img")
    expect(few).to_have_attribute("aria-label", "few: 2 after 2 steps")
    page.keyboard.press("Escape")
    shoot("marks")
