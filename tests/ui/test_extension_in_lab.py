"""The JupyterLab plugins: sidebar, run tabs, status bar, notifications."""

import re
import time

import pytest
from browsing import (
    LOAD,
    SETUP,
    TRAIN,
    cell_output,
    command,
    open_notebook,
    run_all,
    save,
    state,
)
from lab_server import serving
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

LONG = TRAIN.format(epochs=5000)


def sidebar(page):
    return page.get_by_role("region", name="Devices and runs")


def cards(page):
    return sidebar(page).locator(".nbmgpu-RunCard")


def curve(card):
    return card.locator(".nbmgpu-Sparkline path")


def open_with_sidebar(page, url):
    open_notebook(page, url)
    command(page, "nbmgpu:show-runs")
    expect(sidebar(page)).to_be_visible()


def choose_theme(page, name):
    command(page, "apputils:change-theme", theme=name)
    light = str("Light" in name).lower()
    expect(page.locator("body")).to_have_attribute("data-jp-theme-light", light)
    page.wait_for_timeout(1000)  # until it is rendered and saved


def begin(page, url):
    """Run all cells and return the card of the run, once it has a curve."""
    open_with_sidebar(page, url)
    before = cards(page).count()
    run_all(page)
    expect(cards(page)).to_have_count(before + 1)
    card = cards(page).first
    expect(card.locator(".nbmgpu-RunCard-state")).to_have_text("running")
    expect(curve(card)).to_be_attached()
    return card


def test_the_sidebar_shows_instructions_then_a_run_and_stops_it(lab, page, shoot):
    open_with_sidebar(page, lab.write("sidebar.ipynb", LOAD, SETUP, LONG))
    expect(sidebar(page).get_by_role("meter")).to_have_count(2)
    expect(sidebar(page).get_by_role("meter", name="memory")).to_have_attribute(
        "aria-valuetext", re.compile(r"^[0-9.]+ of [0-9.]+ GiB$")
    )
    expect(sidebar(page)).to_contain_text("%%mgpu --strategy ddp")
    shoot("sidebar-empty")
    run_all(page)
    card = cards(page).first
    expect(card.locator(".nbmgpu-RunCard-state")).to_have_text("running")
    expect(card).to_contain_text("ddp on 2 ranks (cpu)")
    expect(card).to_contain_text("sidebar.ipynb")
    expect(curve(card)).to_be_attached()
    path = curve(card).get_attribute("d")
    expect(curve(card)).not_to_have_attribute("d", path)  # it is updated
    status = page.get_by_title("Show devices and runs")
    expect(status).to_have_text(re.compile(r"^[a-z]+\.ipynb: ddp running (\d+ s|\d+:\d\d)$"))
    expect(page.locator(".jp-Notebook-ExecutionIndicator")).to_have_attribute("data-status", "busy")
    shoot("sidebar")
    card.get_by_role("button", name=re.compile("^Stop: ")).click()
    expect(card.locator(".nbmgpu-RunCard-state")).to_have_text("stopped")
    expect(cell_output(page, 2)).to_contain_text("what was trained so far is back")
    expect(status).to_have_count(0)


@pytest.mark.matrix("labextension", "nbmgpu/ui", "nbmgpu/server", "nbmgpu/report")
def test_a_tab_shows_a_run_whose_kernel_was_restarted(lab, page, shoot):
    card = begin(page, lab.write("tab.ipynb", LOAD, SETUP, LONG))
    card.get_by_role("button", name="for epoch in range(5000):").click()
    tab = page.locator(".nbmgpu-RunTab")
    expect(tab.get_by_role("status").first).to_have_text("running")
    expect(tab).to_contain_text("global batch 8 = 2 ranks x 4")
    expect(tab.locator("canvas").first).to_be_visible()
    page.wait_for_timeout(1500)
    shoot("tab")
    choose_theme(page, "JupyterLab Dark")
    shoot("tab-dark")
    page.get_by_role("tab", name="tab.ipynb").click()
    command(page, "kernelmenu:restart")
    page.locator(".jp-Dialog .jp-mod-accept").click()
    expect(card.locator(".nbmgpu-RunCard-state")).to_have_text(
        re.compile("^(stopped|lost|failed)$")
    )
    # The new kernel has not loaded nbmgpu, and still shows the run.
    card.get_by_role("button", name=re.compile("^Follow in a notebook")).click()
    expect(cell_output(page, 3)).to_contain_text("ddp on 2 ranks (cpu)")
    page.get_by_role("tab", name=re.compile("^ddp on 2 ranks")).click()
    expect(tab.get_by_role("status").first).to_have_text(re.compile("^(stopped|lost|failed)$"))
    expect(tab.locator("canvas").first).to_be_visible()
    shoot("tab-of-a-restarted-kernel")
    # The layout is restored: a reloaded page has the tab of the run, named before it is shown.
    page.get_by_role("tab", name="tab.ipynb").click()
    page.wait_for_timeout(1500)
    page.goto(re.sub(r"/tree/.*", "", page.url))
    page.get_by_role("tab", name=re.compile("^ddp on 2 ranks")).click()
    expect(tab.locator("canvas").first).to_be_visible()
    choose_theme(page, "JupyterLab Light")


def outputs_of(lab, name, number):
    return lab.read(name).cells[number].outputs


def wait_for(page, condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        page.wait_for_timeout(100)


@pytest.mark.matrix("labextension", "nbmgpu/ui", "nbmgpu/server", "nbmgpu/report")
def test_a_reloaded_page_has_the_panel_and_then_the_summary(lab, page, shoot):
    url = lab.write("again.ipynb", LOAD, SETUP, TRAIN.format(epochs=80))
    card = begin(page, url)
    wait_for(page, lambda: outputs_of(lab, "again.ipynb", 2))  # saved by the plugin
    page.goto(url.replace("&reset", ""))
    expect(state(page)).to_have_text("running")
    expect(card.locator(".nbmgpu-RunCard-state")).to_have_text("finished", timeout=60_000)
    expect(cell_output(page, 2)).to_contain_text("✓ finished")
    shoot("summary-of-a-reloaded-page")
    save(page)
    (shown,) = (o for o in outputs_of(lab, "again.ipynb", 2) if o.output_type == "display_data")
    assert set(shown.data) == {"text/html", "text/plain"}


@pytest.mark.matrix("labextension", "nbmgpu/ui", "nbmgpu/server", "nbmgpu/report")
def test_the_panel_of_a_restarted_kernel_is_replaced_by_the_summary(lab, page):
    card = begin(page, lab.write("restarted.ipynb", LOAD, SETUP, LONG))
    command(page, "kernelmenu:restart")
    page.locator(".jp-Dialog .jp-mod-accept").click()
    expect(card.locator(".nbmgpu-RunCard-state")).to_have_text(re.compile("^(stopped|lost)$"))
    expect(cell_output(page, 2)).to_contain_text(re.compile("■ stopped|✗ lost"))
    expect(state(page)).to_have_count(0)


def test_a_failure_in_a_hidden_notebook_is_notified(lab, page, shoot):
    fails = TRAIN.format(epochs=40).replace("    print(", "    1 / (epoch < 20)\n    print(")
    card = begin(page, lab.write("fails.ipynb", LOAD, SETUP, fails))
    command(page, "launcher:create")
    expect(page.locator(".jp-Launcher:visible")).to_be_visible()
    toast = page.locator(".Toastify__toast")
    expect(toast).to_contain_text("fails.ipynb: ddp on 2 ranks (cpu) failed after")
    expect(toast).to_contain_text("ZeroDivisionError")
    expect(card).to_contain_text("line 9: ZeroDivisionError: division by zero")
    page.wait_for_timeout(800)  # until its animation ends
    shoot("notification")
    toast.get_by_role("button", name="Open the run").click()
    expect(page.locator(".nbmgpu-RunTab").get_by_role("status").first).to_have_text("failed")


def test_the_actions_of_a_finished_run(lab, page, shoot):
    card = begin(page, lab.write("over.ipynb", LOAD, SETUP, TRAIN.format(epochs=6)))
    expect(card.locator(".nbmgpu-RunCard-state")).to_have_text("finished")
    run = card.get_attribute("data-run")
    page.wait_for_timeout(500)
    expect(page.locator(".Toastify__toast")).to_have_count(0)  # the notebook was visible
    card.get_by_role("button", name=re.compile("^Follow in a notebook")).click()
    expect(page.locator(".jp-CodeCell")).to_have_count(4)
    expect(page.locator(".jp-CodeCell").nth(3)).to_contain_text(f"%mgpu attach {run}")
    expect(cell_output(page, 3)).to_contain_text("finished")
    card.get_by_role("button", name=re.compile("^Name and tag")).click()
    page.get_by_role("dialog").get_by_label("Name").fill("the first one")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    card.locator(".nbmgpu-RunCard-title").click()
    tab = page.locator(".lm-TabBar-tab", has_text="the first one")
    expect(tab).to_be_visible()
    shoot("run-tab-toolbar")
    tools = page.locator(".jp-MainAreaWidget:has(.nbmgpu-RunTab) .jp-Toolbar")
    for label, file in (("Export the Run as", "first.py"), ("Save a Report", "first.html")):
        tab.click()
        tools.get_by_title(label).click()
        page.get_by_role("dialog").get_by_role("textbox").fill(file)
        page.get_by_role("dialog").locator(".jp-mod-accept").click()
        wait_for(page, lambda file=file: any(lab.root.rglob(file)))
    expect(page.locator(".jp-CodeCell").nth(5)).to_contain_text(f"%mgpu export --report {run}")
    card.get_by_role("button", name=re.compile("^Open its folder")).click()
    toast = page.locator(".Toastify__toast")
    expect(toast).to_contain_text(f"{lab.root}/runs/{run}")  # outside of the server's root folder
    command(page, "launcher:create")
    expect(page.locator(".jp-Launcher:visible")).to_be_visible()
    card.get_by_role("button", name=re.compile("^Show its notebook")).click()
    expect(page.locator(".jp-Notebook")).to_be_visible()
    card.get_by_role("button", name=re.compile("^Delete")).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"Delete run {run}?")
    shoot("delete")
    dialog.get_by_role("button", name="Delete").click()
    expect(sidebar(page).locator(f"[data-run='{run}']")).to_have_count(0)
    assert not (lab.root / "runs" / run).exists()


@pytest.mark.matrix("labextension", "nbmgpu/ui", "nbmgpu/server", "nbmgpu/report")
def test_notebook_7_has_sidebar_and_run_view(notebook7, page, shoot):
    card = begin(page, notebook7.write("seven.ipynb", LOAD, SETUP, LONG))
    expect(state(page)).to_have_text("running")
    shoot("notebook-7")
    card.get_by_role("button", name="for epoch in range(5000):").click()
    tab = page.locator(".nbmgpu-RunTab")
    expect(tab.get_by_role("status").first).to_have_text("running")
    shoot("notebook-7-run")
    card.get_by_role("button", name=re.compile("^Stop: ")).click()
    expect(card.locator(".nbmgpu-RunCard-state")).to_have_text("stopped")
    expect(tab.get_by_role("status").first).to_have_text("stopped")


@pytest.mark.matrix("labextension", "nbmgpu/ui", "nbmgpu/server", "nbmgpu/report")
def test_the_picker_adds_a_line_that_runs(lab, page, shoot):
    train = TRAIN.format(epochs=3).partition("\n")[2]
    open_notebook(page, lab.write("pick.ipynb", LOAD, SETUP, train))
    for number in range(2):
        page.locator(".jp-CodeCell").nth(number).click()
        page.keyboard.press("Control+Enter")
    expect(page.locator(".jp-InputPrompt").nth(1)).to_have_text("[2]:")
    cell = page.locator(".jp-CodeCell").nth(2)
    cell.click()
    shoot("cell-toolbar")
    cell.get_by_role("button", name="Choose how this cell runs on several GPUs").click()
    picker = page.get_by_role("dialog").get_by_role("region", name="Strategy picker")
    expect(picker).to_contain_text("model")
    expect(picker.locator("code")).to_have_text(re.compile("^%%mgpu --strategy ddp"))
    shoot("picker")
    picker.get_by_role("radiogroup", name="Strategy").get_by_text("zero1").click()
    line = picker.locator("code")
    expect(line).to_have_text(re.compile("^%%mgpu --strategy zero1 "))
    written = line.text_content()
    picker.get_by_role("button", name="Add to the cell").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(cell.locator(".cm-line").first).to_have_text(written)
    page.get_by_role("button", name="Run this cell and advance").click()
    expect(cell_output(page, 2)).to_contain_text("zero1 on 2 ranks (cpu)")
    expect(cell_output(page, 2)).to_contain_text("✓ finished")


@pytest.mark.matrix("labextension", "nbmgpu/ui", "nbmgpu/server", "nbmgpu/report")
def test_the_picker_of_a_busy_kernel_has_no_estimates(lab, page, shoot):
    open_notebook(page, lab.write("busy.ipynb", "import time; time.sleep(60)", "x = 1"))
    page.locator(".jp-CodeCell").first.click()
    page.keyboard.press("Shift+Enter")
    expect(page.locator(".jp-Notebook-ExecutionIndicator")).to_have_attribute("data-status", "busy")
    command(page, "nbmgpu:pick-strategy")
    picker = page.get_by_role("dialog").get_by_role("region", name="Strategy picker")
    expect(picker).to_contain_text("The kernel is busy and cannot inspect the model: no")
    picker.get_by_role("combobox", name="CPU ranks").select_option("4")
    expect(picker.locator("code")).to_have_text("%%mgpu --strategy ddp --gpus 4")
    shoot("picker-busy")
    picker.get_by_role("button", name="Add to the cell").click()
    cell = page.locator(".jp-CodeCell")
    expect(cell.nth(1).locator(".cm-line")).to_have_text(["%load_ext nbmgpu"])
    expect(cell.nth(2).locator(".cm-line")).to_have_text(
        ["%%mgpu --strategy ddp --gpus 4", "x = 1"]
    )


@pytest.mark.matrix("labextension", "nbmgpu/ui", "nbmgpu/server", "nbmgpu/report")
def test_the_line_of_the_settings_is_added_to_a_cell(lab, page):
    open_notebook(page, lab.write("line.ipynb", "x = 1"))
    page.locator(".jp-CodeCell .cm-line").click(button="right")
    page.locator(".lm-Menu-item", has_text="Several GPUs").hover()
    page.get_by_role("menuitem", name="Add the mGPU Line to the Cell").click()
    cell = page.locator(".jp-CodeCell")
    expect(cell.nth(0).locator(".cm-line")).to_have_text(["%load_ext nbmgpu"])
    expect(cell.nth(1).locator(".cm-line")).to_have_text(["%%mgpu --strategy ddp", "x = 1"])
    run_all(page)
    expect(cell_output(page, 1)).to_contain_text("finished")


@pytest.mark.matrix("labextension", "nbmgpu/ui", "nbmgpu/server", "nbmgpu/report")
def test_a_server_without_nbmgpu_is_reported(tmp_path, built, page, shoot):
    with serving("lab", tmp_path, extended=False) as lab:
        open_with_sidebar(page, lab.write("alone.ipynb", "x = 1"))
        expect(sidebar(page)).to_contain_text("nbmgpu is not installed in the environment")
        expect(sidebar(page)).to_contain_text("pip install nbmgpu")
        expect(sidebar(page).get_by_role("button")).to_have_count(0)
        shoot("sidebar-without-server")
