"""The strategy picker in JupyterLab: selection, and the line that it adds."""

import os
import re
from pathlib import Path

import pytest
from browsing import LOAD, SETUP, cell_output, open_notebook, run_all
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

PICK = "import nbmgpu\npick = nbmgpu.picker(model, optimizer=optimizer, loader=loader)\npick"
TRAIN = """for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()"""
GPT2 = """
import torch, transformers
transformers.logging.set_verbosity_error()
config = transformers.GPT2Config(n_layer=12, n_embd=768, n_head=12)
with torch.device("meta"):
    model = transformers.GPT2LMHeadModel(config)
optimizer = torch.optim.AdamW(model.parameters())
from nbmgpu.advisor.model_advisor import ModelAdvisor
from nbmgpu.advisor.picker_state import PickerController
from nbmgpu.advisor.request import AdviceRequest
from nbmgpu.ui.picker import Picker
class OnGpus(PickerController):
    def request(self):
        import dataclasses
        return dataclasses.replace(super().request(), memory="8 GB")
Picker(OnGpus(ModelAdvisor(model, optimizer, (16, 512)), "model, optimizer"))
"""
"""Shows the picker for a machine with small GPUs, whose memory is given and not probed."""


def picker(page):
    return page.get_by_role("region", name="Strategy picker")


def line(page):
    return picker(page).locator(".nbmgpu-picker-line")


def shot(page, name):
    """Save a screenshot in ``$NBMGPU_SHOTS``, if set."""
    if folder := os.environ.get("NBMGPU_SHOTS"):
        picker(page).screenshot(path=Path(folder) / f"picker-{name}.png")


def test_the_line_follows_the_selection_and_runs(lab, page):
    open_notebook(page, lab.write("pick.ipynb", LOAD, SETUP, PICK, TRAIN))
    run_all(page)
    expect(line(page)).to_have_text("%%mgpu --strategy ddp --gpus 2")
    expect(picker(page)).to_contain_text("Everything fits on each rank")
    expect(picker(page)).to_contain_text("27 parameters, SGD · 2 CPU ranks")
    shot(page, "light")

    picker(page).get_by_role("radio", name=re.compile("^zero2")).check()
    expect(line(page)).to_have_text("%%mgpu --strategy zero2 --gpus 2")
    picker(page).get_by_label("Batches per step").fill("2")
    expect(line(page)).to_have_text("%%mgpu --strategy zero2 --gpus 2 --accumulate 2")
    picker(page).get_by_label("Precision").select_option("fp16")
    refused = picker(page).get_by_role("radio", name=re.compile("^zero2"))
    expect(refused).to_be_disabled()
    expect(picker(page)).to_contain_text("its losses are not scaled")
    expect(line(page)).to_have_text(
        "%%mgpu --strategy ddp --gpus 2 --accumulate 2 --precision fp16"
    )
    picker(page).get_by_label("Precision").select_option("")
    picker(page).get_by_label("Batches per step").fill("1")
    picker(page).get_by_label("CPU ranks").focus()
    expect(line(page)).to_have_text("%%mgpu --strategy zero2 --gpus 2")

    picker(page).get_by_role("button", name="Apply to the next cell").click()
    expect(picker(page)).to_contain_text("Added to the next code cell.")
    cell = page.locator(".jp-CodeCell").nth(3)
    expect(cell.locator(".cm-line").first).to_have_text("%%mgpu --strategy zero2 --gpus 2")
    expect(cell.locator(".cm-line").nth(1)).to_have_text("for x, y in loader:")
    cell.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    expect(cell_output(page, 3)).to_contain_text("finished", timeout=60_000)
    expect(cell_output(page, 3)).to_contain_text("zero2 on 2 ranks")


@pytest.mark.matrix("labextension", "nbmgpu/ui", "nbmgpu/server", "nbmgpu/report")
def test_a_cell_is_inserted_below(lab, page):
    open_notebook(page, lab.write("insert.ipynb", LOAD, SETUP, "%mgpu pick model optimizer"))
    run_all(page)
    expect(line(page)).to_have_text("%%mgpu --strategy ddp --gpus 2")
    expect(picker(page)).to_contain_text("Activations are not counted")
    picker(page).get_by_role("button", name="Insert cell below").click()
    inserted = page.locator(".jp-CodeCell").nth(3).locator(".cm-line").first
    expect(inserted).to_have_text("%%mgpu --strategy ddp --gpus 2")


def test_nodes_and_their_link_have_fields(lab, page):
    pick = "%mgpu pick model optimizer loader --engine slurm --nodes 2 --gpus 4 --link 25"
    open_notebook(page, lab.write("nodes.ipynb", LOAD, SETUP, pick))
    run_all(page)
    expect(line(page)).to_have_text("%%mgpu --strategy ddp --gpus 4 --engine slurm --nodes 2")
    expect(picker(page).get_by_label("Gbit/s between nodes")).to_have_value("25")
    ddp = picker(page).locator(".nbmgpu-picker-row").first
    expect(ddp).to_contain_text("between nodes: 189 bytes, less than 0.1 ms")
    picker(page).get_by_label("Nodes", exact=True).fill("4")
    expect(line(page)).to_have_text("%%mgpu --strategy ddp --gpus 4 --engine slurm --nodes 4")
    picker(page).get_by_label("Gbit/s between nodes").fill("50")
    expect(picker(page)).to_contain_text("to others, in less than 0.1 ms at 50 Gbit/s")
    picker(page).get_by_label("Free memory of a GPU").fill("80 GB")
    picker(page).get_by_label("Free memory of a GPU").press("Tab")
    expect(picker(page)).to_contain_text("4 nodes with 4 GPUs each, 74.5 GiB per GPU")
    shot(page, "nodes")


@pytest.mark.matrix("labextension", "nbmgpu/ui", "nbmgpu/server", "nbmgpu/report")
def test_selection_by_keyboard(lab, page):
    open_notebook(page, lab.write("keys.ipynb", LOAD, SETUP, PICK))
    run_all(page)
    ddp = picker(page).get_by_role("radio", name=re.compile("^ddp"))
    ddp.click()
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    expect(line(page)).to_have_text("%%mgpu --strategy zero1 --gpus 2")
    expect(picker(page).get_by_role("radio", name=re.compile("^zero1"))).to_be_focused()
    assert picker(page).get_by_role("radio", checked=True).count() == 1


@pytest.mark.parametrize("look", ["dark", "narrow"])
@pytest.mark.matrix("labextension", "nbmgpu/ui", "nbmgpu/server", "nbmgpu/report")
def test_themes_and_widths(lab, page, look):
    if look == "narrow":
        page.set_viewport_size({"width": 620, "height": 1200})
    open_notebook(page, lab.write(f"{look}.ipynb", LOAD, GPT2))
    if look == "dark":
        page.evaluate(
            "window.jupyterapp.commands.execute('apputils:change-theme', "
            "{theme: 'JupyterLab Dark'})"
        )
        expect(page.locator("body")).to_have_attribute("data-jp-theme-light", "false")
    run_all(page)
    expect(line(page)).to_be_visible(timeout=60_000)
    expect(picker(page)).to_contain_text("124 million parameters, AdamW")
    assert picker(page).locator("input[type=radio]").count() >= 10
    picture = picker(page).bounding_box()
    assert picture["width"] <= page.viewport_size["width"]
    overflow = picker(page).evaluate("node => node.scrollWidth - node.clientWidth")
    assert overflow <= 0
    shot(page, look)
