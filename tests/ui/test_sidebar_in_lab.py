"""The sidebar's list of runs: filters, selection, what a reload keeps, and the size on the disk."""

import re
import shutil

import pytest
from browsing import command
from playwright.sync_api import expect
from staged import Stage

from nbmgpu.runs.held_ranks import mark_all_held, mark_held

pytestmark = pytest.mark.browser

RUNS = [
    ("digits/train.ipynb", "ddp", "finished"),
    ("digits/train.ipynb", "fsdp", "failed"),
    ("a-notebook-with-a-long-name-that-does-not-fit.ipynb", "ddp", "finished"),
    ("", "fsdp", "stopped"),
    ("faces/train.ipynb", "fsdp", "finished"),
]


@pytest.fixture
def folders(lab, monkeypatch):
    """The folders of finished runs, oldest first."""
    monkeypatch.setenv("NBMGPU_RUNS", str(lab.root / "runs"))
    with Stage() as stage:
        runs = []
        for number, (notebook, strategy, ending) in enumerate(RUNS):
            staged = stage(
                2,
                id=f"20260101-12000{number}-abcd",
                created=1.8e9 + number,
                notebook=notebook,
                strategy=strategy,
            )
            staged.run.label(name=f"run {number}", tags=["sweep"])
            staged.start()
            staged.points("loss", list(range(1, 50)), [1 / k for k in range(1, 50)])
            staged.end(ending)
            runs.append(staged.run.folder)
        yield runs
    shutil.rmtree(lab.root / "runs")


def open_sidebar(page):
    page.locator(".jp-Launcher").wait_for()
    command(page, "nbmgpu:show-runs")
    sidebar = page.get_by_role("region", name="Devices and runs")
    expect(sidebar).to_be_visible()
    return sidebar


def saving(page):
    """Wait until JupyterLab has saved its state, as it does a moment after a change."""
    return page.expect_response(
        lambda answer: "/api/workspaces" in answer.url and answer.request.method == "PUT"
    )


def titles(sidebar):
    return sidebar.locator(".nbmgpu-RunCard-title")


def names(*numbers):
    return [f"run {number}" for number in numbers]


def test_filters_and_selection_survive_a_reload(lab, page, folders, shoot):
    page.set_viewport_size({"width": 800, "height": 900})
    page.goto(f"{lab.url}/lab?token={lab.token}&reset")
    sidebar = open_sidebar(page)
    expect(titles(sidebar)).to_have_text(names(4, 3, 2, 1, 0))
    notebook = sidebar.get_by_role("combobox", name="Notebook")
    strategy = sidebar.get_by_role("combobox", name="Strategy")
    state = sidebar.get_by_role("combobox", name="State")
    reset = sidebar.get_by_role("button", name="Reset filters")
    expect(notebook.locator("option")).to_have_text(
        [
            "All notebooks",
            "a-notebook-with-a-long-name-that-does-not-fit.ipynb",
            "digits/train.ipynb",
            "faces/train.ipynb",
            "not from a notebook",
        ]
    )
    expect(strategy.locator("option")).to_have_text(["All strategies", "ddp", "fsdp"])
    expect(state.locator("option")).to_have_text(["All states", "failed", "finished", "stopped"])
    expect(reset).to_have_count(0)
    expect(sidebar.locator(".nbmgpu-DiskUsage")).to_have_text(
        re.compile(r"^5 runs, \d+(\.\d)? [KM]iB$")
    )

    # All filters must be met.
    strategy.select_option("fsdp")
    expect(titles(sidebar)).to_have_text(names(4, 3, 1))
    state.select_option("finished")
    expect(titles(sidebar)).to_have_text(names(4))
    words = sidebar.get_by_role("searchbox", name="Filter runs")
    words.fill("sweep large")
    expect(titles(sidebar)).to_have_count(0)
    nothing = sidebar.get_by_text("No run meets all of these filters.")
    expect(nothing).to_be_visible()
    shoot("sidebar-no-match")
    reset.last.press("Enter")
    expect(titles(sidebar)).to_have_count(5)
    expect(nothing).to_have_count(0)
    expect(words).to_be_focused()
    assert [each.input_value() for each in (words, notebook, strategy, state)] == [""] * 4

    # The checkbox selects what is shown.
    every = sidebar.get_by_role("checkbox", name="Select all shown runs")
    count = sidebar.locator(".nbmgpu-RunTools-count")
    strategy.select_option("fsdp")
    every.focus()
    page.keyboard.press("Space")
    expect(count).to_have_text("3 selected")
    sidebar.get_by_role("checkbox", name=re.compile("120003-abcd")).uncheck()
    assert every.evaluate("box => box.indeterminate")
    expect(count).to_have_text("2 selected")
    strategy.select_option("")
    notebook.select_option(label="digits/train.ipynb")
    with saving(page):
        words.fill("sweep")
    expect(count).to_have_text("2 selected, 1 hidden")
    shoot("sidebar-light")

    # A reload keeps all of it; what was deleted meanwhile is no longer selected.
    page.reload()
    sidebar = open_sidebar(page)
    expect(titles(sidebar)).to_have_text(names(1, 0))
    expect(words).to_have_value("sweep")
    expect(notebook.locator("option:checked")).to_have_text("digits/train.ipynb")
    expect(count).to_have_text("2 selected, 1 hidden")
    assert every.evaluate("box => box.indeterminate")
    command(page, "apputils:change-theme", theme="JupyterLab Dark")
    page.wait_for_timeout(1000)  # until it is rendered
    shoot("sidebar-dark")
    shutil.rmtree(folders[4])
    expect(count).to_have_text("1 selected")
    expect(sidebar.locator(".nbmgpu-DiskUsage")).to_have_text(re.compile(r"^4 runs, "))
    shutil.rmtree(folders[1])
    expect(count).to_have_text("Select all")
    expect(titles(sidebar)).to_have_text(names(0))


def test_what_an_action_could_not_do_is_said(lab, page, folders, shoot):
    mark_held(folders[0], 0)
    mark_all_held(folders[0])
    page.goto(f"{lab.url}/lab?token={lab.token}&reset")
    sidebar = open_sidebar(page)
    card = sidebar.locator(".nbmgpu-RunCard", has_text="run 0")
    dialog = page.locator(".jp-Dialog")
    # The memory of the ranks that are held is readable.
    headline = card.locator(".nbmgpu-RunCard-headline")
    expect(headline).to_have_text(
        re.compile(r"^ddp on 2 ranks \(cpu\), ranks held: [\d.]+ [MG]iB$")
    )
    assert headline.evaluate("node => node.scrollWidth <= node.clientWidth")
    # A tag that is too long: the dialog opens again, and says why.
    card.get_by_role("button", name="Name and tag it").click()
    dialog.get_by_label("Tags").fill("long" * 15)
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("A tag has at most 40 characters")
    expect(dialog.get_by_label("Tags")).to_have_value("long" * 15)
    shoot("labels-refused")
    dialog.get_by_role("button", name="Cancel").click()
    # A run whose ranks are held cannot be deleted.
    card.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete").click()
    toast = page.locator(".Toastify__toast")
    expect(toast).to_contain_text("are held for the next cell")
    expect(toast).to_be_in_viewport(ratio=1)
    shoot("deletion-refused")
