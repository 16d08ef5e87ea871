"""The panel view that CONTRIBUTING.md prints, in the panel and in JupyterLab's run view."""

import pytest
from browsing import command, open_notebook, panel, run_all
from entry_points import example_of_contributing, write_distribution
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

CELL = """
import asyncio
from staged import StagedRun
from nbmgpu.ui.panel import RunPanel

staged = StagedRun(2)
panel = RunPanel(staged.run)
display(panel)
staged.start()
for step in range(600):
    staged.points("loss", [step], [0.5], 0)
    staged.points("loss", [step], [0.25], 1)
    staged.run.poll()
    panel.refresh()
    await asyncio.sleep(0.1)
"""


def test_it_is_drawn_in_the_panel_and_in_the_tab_of_the_run(lab, page, shoot):
    site = lab.root / "site-packages"  # on sys.path of the server and of kernels
    write_distribution(site, *example_of_contributing("Add a panel view"))
    open_notebook(page, lab.write("view.ipynb", CELL))
    run_all(page)
    section = panel(page).get_by_label("Loss of each rank")
    expect(section).to_have_text("rank 0: 0.5, rank 1: 0.25")
    shoot("panel-view")
    (run,) = [path.name for path in (lab.root / "runs").iterdir() if path.is_dir()]
    command(page, "nbmgpu:open-run", id=run)
    tab = page.locator(".nbmgpu-RunTab")
    expect(tab.get_by_label("Loss of each rank")).to_have_text("rank 0: 0.5, rank 1: 0.25")
    shoot("panel-view-in-tab")
