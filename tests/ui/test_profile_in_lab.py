"""The profile of a run in JupyterLab: a table with a row per rank, and downloads of traces."""

import gzip
import json
import re

import pytest
from browsing import command, open_notebook, panel, run_all, state
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

TRACE = {"traceEvents": [{"ph": "X", "name": str(number)} for number in range(50_000)]}

STAGE = """
import asyncio, gzip, json
from staged import StagedRun
from nbmgpu.ui.panel import RunPanel

staged = StagedRun(2)
run = staged.run
panel = RunPanel(run)
display(panel)
staged.start()
print("run", run.id)
events = [{"ph": "X", "name": str(number)} for number in range(50_000)]
trace = gzip.compress(json.dumps({"traceEvents": events}).encode(), 1)
staged.profile(0, trace, hidden=0.002)
staged.profile(1, trace, step_time=0.04, host=0.021)
for step in range(5, 2000):
    await asyncio.sleep(0.1)
    run.poll()
    panel.refresh()
"""


def check_profile(page, view):
    """Check the table, and the trace of rank 1 that its button downloads."""
    table = view.get_by_role("table", name="Time of the average profiled step of each rank")
    expect(table.locator("tbody th")).to_have_text(["0", "1"])
    row = table.get_by_role("row").nth(2).get_by_role("cell")
    times = ["40 ms", "10 ms", "5 ms", "4 ms", "21 ms", "1 ms"]
    expect(row).to_have_text([*times, re.compile("KiB$")])
    expect(view.get_by_text("steps 5-10")).to_be_visible()
    button = view.get_by_role("button", name=re.compile("^Download the trace of rank 1, "))
    with page.expect_download() as download:
        button.focus()
        page.keyboard.press("Enter")
    name = download.value.suggested_filename
    assert re.fullmatch(r"2[0-9]{7}-.*-trace_rank1\.json\.gz", name)
    assert json.loads(gzip.decompress(download.value.path().read_bytes())) == TRACE
    link = view.get_by_role("link", name="ui.perfetto.dev")
    assert link.get_attribute("href") == "https://ui.perfetto.dev"
    assert "noopener" in link.get_attribute("rel")


def test_a_profile_is_a_table_and_its_traces_are_downloaded(lab, page, shoot):
    open_notebook(page, lab.write("profile.ipynb", STAGE))
    run_all(page)
    expect(state(page)).to_have_text("running")
    check_profile(page, panel(page))  # in parts, from the kernel
    printed = page.get_by_text(re.compile("^run [0-9]")).inner_text()
    command(page, "nbmgpu:open-run", id=printed.split()[1])
    tab = page.locator(".nbmgpu-RunTab").get_by_role("region", name="Run on several ranks")
    check_profile(page, tab)  # from the server
    tab.get_by_role("table", name=re.compile("^Time of the average")).scroll_into_view_if_needed()
    shoot("profile")
    tab.get_by_text("Profile", exact=True).click()
    expect(tab.get_by_role("table", name=re.compile("^Time of the average"))).to_be_hidden()
