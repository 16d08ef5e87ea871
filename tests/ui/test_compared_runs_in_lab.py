"""Runs side by side: the sidebar's filter and selection, labels, and the tab of a comparison."""

import re
import shutil
import struct

import pytest
from browsing import command, open_notebook, run_all
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

SETUP = """
%load_ext nbmgpu
import torch, nbmgpu
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
X = torch.randn(64, 8)
loader = DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), batch_size=8)
model = nn.Linear(8, 1)
"""

TRAIN = """%%mgpu --gpus 2 --cpu --name "{name}" --tag sweep
opt = torch.optim.SGD(model.parameters(), lr={lr})
for epoch in range(3):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    nbmgpu.log(accuracy=epoch / 3, val_accuracy=epoch / 4)
"""

NAMES = ("small steps", "large steps", "no steps")


def three_runs(lab, page):
    """Return the sidebar with three finished runs, without those of a test that has failed."""
    shutil.rmtree(lab.root / "runs", ignore_errors=True)
    cells = [TRAIN.format(name=name, lr=lr) for name, lr in zip(NAMES, (0.01, 0.1, 0), strict=True)]
    open_notebook(page, lab.write("sweep.ipynb", SETUP, *cells))
    command(page, "nbmgpu:show-runs")
    run_all(page)
    found = page.get_by_role("region", name="Devices and runs")
    good = found.locator(".nbmgpu-RunCard[data-tone=good]")
    expect(good).to_have_count(3, timeout=90_000)
    return found


def test_runs_are_filtered_compared_and_renamed(lab, page, shoot):
    sidebar = three_runs(lab, page)
    cards = sidebar.locator(".nbmgpu-RunCard")
    expect(cards.locator(".nbmgpu-RunCard-title")).to_have_text(list(reversed(NAMES)))
    expect(cards.first.locator(".nbmgpu-RunCard-tag")).to_have_text(["sweep"])
    compare = sidebar.get_by_role("button", name=re.compile("^Compare"))
    expect(compare).to_be_disabled()
    # The filter hides cards, and keeps what is selected.
    for name in NAMES[:2]:
        sidebar.get_by_role("searchbox", name="Filter runs").fill(f"{name} SWEEP finished")
        expect(cards).to_have_count(1)
        cards.get_by_role("checkbox").check()
    sidebar.get_by_role("searchbox", name="Filter runs").fill("")
    expect(cards).to_have_count(3)
    expect(cards.locator("input:checked")).to_have_count(2)
    expect(sidebar.locator(".nbmgpu-RunTools-count")).to_have_text("2 selected")
    cards.filter(has_text=NAMES[2]).get_by_role("checkbox").check()
    compare.click()

    tab = page.get_by_role("region", name="Comparison of runs")
    rows = tab.locator("table tbody tr")
    expect(rows).to_have_count(3)
    # A run leaves the comparison, whose charts have described it.
    # Runs of more than half a second, as of a slow machine, have a chart of samples/s, too.
    figures = tab.get_by_role("figure").filter(has_not_text="samples/s")
    plots = figures.locator(".nbmgpu-chart-plot[aria-label*=highest]")
    expect(plots.first).to_have_attribute("aria-label", re.compile(f"{NAMES[2]}: lowest"))
    expect(plots).to_have_count(3)
    tab.get_by_role("button", name=f"Remove {NAMES[2]} from the comparison").click()
    expect(rows).to_have_count(2)
    expect(page.locator(".nbmgpu-RunTab-notice").filter(visible=True)).to_have_count(0)
    expect(plots.first).not_to_have_attribute("aria-label", re.compile(NAMES[2]))
    expect(plots).to_have_count(3)
    expect(rows.locator(".nbmgpu-compared-run")).to_have_text(list(NAMES[:2]))
    # Differing columns come first; the lower loss is marked.
    titles = tab.locator("table thead th")
    expect(titles.nth(1)).to_have_text("loss")
    expect(rows.nth(1).locator("td").first).to_have_attribute("data-best", "")
    expect(rows.nth(0).locator("td").first).not_to_have_attribute("data-best", "")
    # A click sorts, a second one the other way round.
    loss = tab.get_by_role("button", name="loss", exact=True)
    loss.click()
    expect(rows.locator(".nbmgpu-compared-run")).to_have_text([NAMES[1], NAMES[0]])
    tab.get_by_role("button", name="loss ↑").click()
    expect(titles.nth(1)).to_have_attribute("aria-sort", "descending")
    expect(rows.locator(".nbmgpu-compared-run")).to_have_text(list(NAMES[:2]))
    # One chart per metric, with a line per run, on other axes too.
    chart = tab.get_by_role("figure").first
    expect(chart.locator(".nbmgpu-chart-entry")).to_have_text(
        [re.compile(rf"^{name} \d") for name in NAMES[:2]]
    )
    axis = tab.get_by_role("combobox", name="Horizontal axis")
    expect(axis.locator("option")).to_have_text(["Step", "Epoch", "Samples", "Time"])
    chart.locator(".nbmgpu-chart-plot").focus()
    page.keyboard.press("ArrowRight")
    expect(chart.locator(".nbmgpu-chart-value")).to_have_text("1")
    axis.select_option("samples")
    chart.locator(".nbmgpu-chart-plot").focus()
    page.keyboard.press("ArrowRight")
    expect(chart.locator(".nbmgpu-chart-value")).to_have_text("8")
    # The cells differ in one line and in the name.
    tab.get_by_text(f"Cell of {NAMES[1]}, compared with {NAMES[0]}").click()
    expect(tab.locator(".nbmgpu-diff-line[data-kind=added]").last).to_contain_text("lr=0.1")
    shoot("compared-runs")
    # In the run's own tab, both accuracies are in one chart, which can be saved.
    tab.get_by_role("button", name=NAMES[1], exact=True).click()
    run = page.get_by_role("region", name="Run on several ranks").filter(visible=True)
    accuracy = run.get_by_role("figure").filter(has_text="accuracy")
    expect(accuracy.locator(".nbmgpu-chart-entry")).to_have_text(
        ["accuracy 0.6667", "val_accuracy 0.5"]
    )
    accuracy.hover()
    with page.expect_download() as download:
        accuracy.get_by_role("button", name="Download this chart as PNG").click()
    assert download.value.suggested_filename == "accuracy.png"
    png = download.value.path().read_bytes()
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    box = accuracy.bounding_box()
    assert width > 1.5 * box["width"]  # twice the pixels of the page
    assert height > 1.5 * 170  # with title and legend
    shoot("epochs")
    page.get_by_role("tab", name="2 runs compared").click()
    # Another run leaves the comparison.
    tab.get_by_role("button", name=f"Remove {NAMES[1]} from the comparison").click()
    expect(rows).to_have_count(1)

    # A new name of the other one is shown in the sidebar and in the open comparison.
    card = cards.filter(has_text=NAMES[0])
    card.get_by_role("button", name="Name and tag it").click()
    dialog = page.locator(".jp-Dialog")
    dialog.get_by_label("Name").fill("the best one")
    dialog.get_by_label("Tags").fill("kept, two words")
    dialog.get_by_label("Note").fill("with\ntwo lines")
    dialog.get_by_role("button", name="Save").click()
    renamed = cards.filter(has_text="the best one")
    expect(renamed.locator(".nbmgpu-RunCard-tag")).to_have_text(["kept", "two", "words"])
    expect(tab.locator("tbody")).to_contain_text("the best one")
    # The note can be read in the comparison and in the run's own tab.
    expect(tab.get_by_role("note", name="Note")).to_have_text("with\ntwo lines")
    shoot("compared-note")
    tab.get_by_role("button", name="the best one", exact=True).click()
    run = page.get_by_role("region", name="Run on several ranks").filter(visible=True)
    note = run.get_by_role("note", name="Note")
    expect(note).to_have_text("with\ntwo lines")
    assert note.bounding_box()["height"] > 25  # two lines
    shoot("note")
