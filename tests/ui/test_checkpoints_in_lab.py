"""The panel of a run with checkpoints, which is stopped and resumed, and of one that hangs."""

import re

import pytest
from browsing import LOAD, SETUP, TRAIN, cell_output, command, open_and_run, panel
from playwright.sync_api import expect

pytestmark = [
    pytest.mark.browser,
    pytest.mark.matrix("labextension", "nbmgpu/ui", "nbmgpu/report", "nbmgpu/rank/checkpoints"),
]

CHECKPOINTED = TRAIN.replace("--gpus 2", "--gpus 2 --checkpoint-every 5steps")
HANGING = TRAIN.replace("--gpus 2", "--gpus 2 --hang-after 2").replace(
    "        time.sleep(0.02)",
    "        if epoch and torch.distributed.get_rank():\n            time.sleep(600)",
)


def themes(page, shoot, name):
    """Save a screenshot in each theme."""
    command(page, "apputils:change-theme", theme="JupyterLab Light")
    expect(page.locator("body")).to_have_attribute("data-jp-theme-light", "true")
    page.wait_for_timeout(500)
    shoot(f"{name}-light")
    command(page, "apputils:change-theme", theme="JupyterLab Dark")
    expect(page.locator("body")).to_have_attribute("data-jp-theme-light", "false")
    page.wait_for_timeout(500)
    shoot(f"{name}-dark")
    command(page, "apputils:change-theme", theme="JupyterLab Light")


def test_a_stopped_run_says_how_to_go_on(lab, page, shoot):
    cells = LOAD, SETUP, CHECKPOINTED.format(epochs=400)
    open_and_run(page, lab.write("checkpoints.ipynb", *cells))
    notices = panel(page).get_by_role("list", name="Notices")
    expect(notices).to_contain_text(
        re.compile(r"Checkpoint after step \d+ at \d\d:\d\d:\d\d: [\d.]+ KiB; .*%%mgpu --resume"),
        timeout=60_000,
    )
    themes(page, shoot, "checkpoint")
    panel(page).get_by_role("button", name=re.compile("Stop")).click()
    stopped = cell_output(page, 2)
    expect(stopped).to_contain_text("KeyboardInterrupt", timeout=30_000)
    expect(stopped).to_contain_text(re.compile(r"Checkpoint after step \d+.*%%mgpu --resume"))
    themes(page, shoot, "stopped-with-checkpoint")


def test_a_hang_says_which_rank_waits_where(lab, page, shoot):
    open_and_run(page, lab.write("hang.ipynb", LOAD, SETUP, HANGING.format(epochs=400)))
    notices = panel(page).get_by_role("list", name="Notices")
    expect(notices).to_contain_text("Rank 1 has not reached", timeout=90_000)
    expect(notices).to_contain_text("time.sleep(600)")
    themes(page, shoot, "hang")
    panel(page).get_by_role("button", name=re.compile("Stop")).click()
    expect(cell_output(page, 2)).to_contain_text("KeyboardInterrupt", timeout=60_000)
