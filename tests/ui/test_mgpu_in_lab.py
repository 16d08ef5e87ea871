"""End to end: a training cell with %%mgpu in JupyterLab."""

import re

import pytest
from browsing import (
    LOAD,
    SETUP,
    TRAIN,
    cell_output,
    open_and_run,
    open_notebook,
    panel,
    run_all,
    save,
    state,
)
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

AFTER = "print('after:', epoch, model is mine, model.weight.grad is not None)"


def test_a_cell_shows_live_output_and_then_a_summary(lab, page):
    open_and_run(page, lab.write("train.ipynb", LOAD, SETUP, TRAIN.format(epochs=12), AFTER))
    expect(panel(page).get_by_text("loss", exact=True).first).to_be_visible()
    expect(panel(page)).to_contain_text("global batch 8 = 2 ranks x 4")
    expect(panel(page)).to_contain_text("2 CPU ranks with gloo")
    expect(cell_output(page, 2)).to_contain_text("epoch 1 done")  # while it still runs
    expect(state(page)).to_have_text("running")
    expect(cell_output(page, 3)).to_contain_text("after: 11 True True", timeout=60_000)
    expect(panel(page)).to_have_count(0)
    expect(cell_output(page, 2)).to_contain_text("finished")
    save(page)
    outputs = lab.read("train.ipynb").cells[2].outputs
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert kinds == {"text/html", "text/plain"}
    summary = next(o for o in outputs if "data" in o)["data"]["text/html"]
    assert "<svg" in summary
    assert "<script" not in summary


@pytest.mark.matrix("labextension", "nbmgpu/ui", "nbmgpu/server", "nbmgpu/report")
def test_stop_writes_the_results_back(lab, page):
    after = "print('after:', epoch < 5000, model is mine)"
    open_and_run(page, lab.write("stop.ipynb", LOAD, SETUP, TRAIN.format(epochs=5000)))
    expect(cell_output(page, 2)).to_contain_text("epoch 1 done")
    panel(page).get_by_role("button", name=re.compile("Stop")).click()
    expect(cell_output(page, 2)).to_contain_text("KeyboardInterrupt")
    expect(cell_output(page, 2)).to_contain_text("what was trained so far is back")
    page.evaluate("window.jupyterapp.commands.execute('notebook:insert-cell-below')")
    page.keyboard.press("Enter")
    page.keyboard.type(after)
    page.keyboard.press("Shift+Enter")
    expect(cell_output(page, 3)).to_contain_text("after: True True")


@pytest.mark.matrix("labextension", "nbmgpu/ui", "nbmgpu/server", "nbmgpu/report")
def test_an_error_in_one_rank_is_shown_with_its_line(lab, page):
    cell = TRAIN.format(epochs=5000).replace(
        "        time.sleep", "        1 / (1 - torch.distributed.get_rank())\n        time.sleep"
    )
    open_notebook(page, lab.write("error.ipynb", LOAD, SETUP, cell))
    run_all(page)
    output = cell_output(page, 2)
    expect(output).to_contain_text("Rank 1 of 2 raised ZeroDivisionError", timeout=60_000)
    expect(output).to_contain_text("1 / (1 - torch.distributed.get_rank())")
    expect(output).to_contain_text("failed")
