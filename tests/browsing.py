"""What browser tests do with a notebook page of JupyterLab."""

import time

from playwright.sync_api import expect


def open_and_run(page, url):
    page.goto(url)
    page.locator(".jp-Notebook").wait_for()
    # The indicator says "idle" before there is a kernel: wait for the name first.
    expect(page.locator(".jp-KernelName")).to_have_text("Python 3 (ipykernel)")
    expect(page.locator(".jp-Notebook-ExecutionIndicator")).to_have_attribute("data-status", "idle")
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    expect(state(page)).to_have_text("running")


def save(page, lab, name):
    before = (lab.folder / name).stat().st_mtime_ns
    page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
    deadline = time.monotonic() + 20
    while (lab.folder / name).stat().st_mtime_ns == before and time.monotonic() < deadline:
        page.wait_for_timeout(50)


def panel(page):
    return page.get_by_role("region", name="Run on several ranks")


def state(page):
    return panel(page).get_by_role("status")
