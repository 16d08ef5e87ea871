"""A page reloaded during a run shows a notice, then the missing output, without errors."""

import re

import pytest
from browsing import LOAD, SETUP, TRAIN, cell_output, open_and_run, save, state
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

NOTICE = "This page was loaded during the run"


@pytest.mark.matrix("labextension", "nbmgpu/ui", "nbmgpu/server", "nbmgpu/report")
def test_output_written_after_a_reload_is_announced_and_added_at_the_end(lab, page, shoot):
    url = lab.write("reloaded.ipynb", LOAD, SETUP, TRAIN.format(epochs=100))
    open_and_run(page, url)
    output = cell_output(page, 2)
    expect(output).to_contain_text("epoch 2 done")
    save(page)
    errors = []
    page.on("console", lambda message: message.type == "error" and errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(url.replace("&reset", ""))
    expect(state(page)).to_have_text("running")
    expect(output).to_contain_text(NOTICE)
    shoot("reloaded-during-a-run")
    expect(output).to_contain_text("✓ finished", timeout=90_000)
    expect(output).to_contain_text("epoch 99 done")
    expect(output).not_to_contain_text(NOTICE)
    shoot("reloaded-after-the-run")
    save(page)
    outputs = lab.read("reloaded.ipynb").cells[2].outputs
    text = "".join(o.text for o in outputs if o.output_type == "stream")
    assert re.findall(r"epoch (\d+) done", text) == [str(n) for n in range(100)]
    assert errors == []


def test_no_summary_is_requested_before_the_runs_are_known(lab, page):
    url = lab.write("unknown.ipynb", LOAD, SETUP, TRAIN.format(epochs=60))
    open_and_run(page, url)
    save(page)
    refused = []
    page.on("response", lambda answer: answer.status >= 400 and refused.append(answer.url))
    is_blocked = True

    def connect(socket):
        if is_blocked:
            socket.close()
        else:
            socket.connect_to_server()

    page.route_web_socket(re.compile("/nbmgpu/api/stream"), connect)
    page.goto(url.replace("&reset", ""))
    expect(state(page)).to_have_text("running")
    page.wait_for_timeout(4000)
    assert refused == []
    is_blocked = False
    expect(cell_output(page, 2)).to_contain_text("✓ finished", timeout=90_000)
    assert refused == []
