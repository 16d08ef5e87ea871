"""Real runs of two ranks, shown and stopped by the server while their kernel is busy or dead."""

import json
import os
import re
import subprocess
import sys

from jupyter_server_process import until
from real_kernel import CELL, CELL_IGNORING_INTERRUPT, real_run

from nbmgpu.report.digest import fingerprint, read_digest
from nbmgpu.server.base_handler import to_json
from nbmgpu.server.payloads import CloseCode

CLOSED = 8


def line_of(server, name):
    return next((line for line in server.request("runs").json["runs"] if line["id"] == name), None)


def state_of(server, name):
    return line_of(server, name)["status"]["state"]


def until_closed(stream):
    """Return all parts that a stream sends until it is closed, and the close code."""
    parts = {}
    while True:
        code, data = stream.recv_data()
        if code == CLOSED:
            return parts, int.from_bytes(data[:2], "big")
        parts |= json.loads(data)


def until_part(stream, parts, condition):
    """Add messages to ``parts`` until ``condition`` is true; return them."""
    for _ in range(100):
        parts |= json.loads(stream.recv())
        if condition(parts):
            return parts
    raise AssertionError(parts)


def test_a_run_is_shown_stopped_and_deleted_while_its_kernel_is_busy(runs):
    with real_run(runs, CELL) as (name, kernel), runs.listen(f"runs/{name}/stream") as stream:
        first = json.loads(stream.recv())
        assert first["about"]["id"] == name
        assert first["status"]["over"] is False
        parts = until_part(
            stream, first, lambda p: any(c["steps"] > 5 for c in p["curves"]["shown"])
        )
        assert parts["curves"]["shown"][0]["name"] == "loss"
        assert [rank["label"] for rank in parts["ranks"]] == ["running", "running"]

        line = line_of(runs, name)
        status = line["status"]
        assert (status["state"], line["kernel"]["alive"], status["over"]) == (
            "running", True, False,
        )  # fmt: skip
        assert line["curve"]["name"] == "loss"
        assert runs.request(f"runs/{name}").json["status"]["state"] == "running"
        page = until(lambda: (p := runs.request(f"runs/{name}/logs?rank=1").json)["total"] and p)
        assert re.fullmatch(r"epoch \d+", page["lines"][0]["text"])

        refused = runs.request(f"runs/{name}", "DELETE")
        assert refused.status == 409
        assert refused.json == {
            "message": f"Run {name} is still running.",
            "hint": "Stop it first.",
        }

        assert runs.request(f"runs/{name}/stop", "POST", {"force": False}).status == 202
        last, code = until_closed(stream)
        assert code == CloseCode.OVER
        assert (last["status"]["state"], last["status"]["over"]) == ("stopped", True)
        assert kernel.poll() is None  # it was busy all the time

        assert state_of(runs, name) == "stopped"
        again = runs.request(f"runs/{name}/stop", "POST", {})
        assert again.status == 409
        assert "is already over" in again.json["message"]

        text = runs.request(f"runs/{name}/logs/0/download")
        assert text.body == (runs.runs / name / "logs" / "rank-0.log").read_bytes()
        assert text.headers["Content-Type"].startswith("text/plain")
        assert text.headers["Content-Disposition"] == f'attachment; filename="{name}-rank-0.log"'

        uncollected = runs.request(f"runs/{name}", "DELETE")  # results not yet written back
        assert uncollected.status == 409
        assert uncollected.json == {
            "message": f"The results of run {name} are not in its notebook yet.",
            "hint": f"Try: %mgpu attach {name} in that notebook, or end its kernel",
        }
        kernel.kill()
        kernel.wait(10)
        assert runs.request(f"runs/{name}", "DELETE").status == 204
        assert not (runs.runs / name).exists()
        assert runs.request(f"runs/{name}").status == 404


SHORT_RUN = "import nbmgpu; nbmgpu.run('import nbmgpu; nbmgpu.log(acc=0.9)', {}, gpus=2, cpu=True)"


def test_a_kernel_caches_the_entry_of_a_finished_run(runs):
    """So that servers do not have to read all of its events."""
    environment = os.environ | {"NBMGPU_RUNS": str(runs.runs)}
    subprocess.run([sys.executable, "-c", SHORT_RUN], env=environment, timeout=60, check=True)
    (folder,) = runs.runs.iterdir()
    digest = read_digest(folder, fingerprint(folder))
    curve = digest.curve
    assert (digest.status.state, curve.name, curve.last) == ("finished", "acc", "0.9")
    entry = line_of(runs, folder.name)
    assert entry["kernel"]["alive"] is False
    assert entry | {"kernel": entry["kernel"] | {"alive": True}} == json.loads(to_json(digest))


def test_a_run_that_ignores_interrupts_is_killed_by_a_forced_stop(runs):
    with real_run(runs, CELL_IGNORING_INTERRUPT) as (name, _):
        until(lambda: "started" in runs.request(f"runs/{name}/logs/0/download").body.decode())
        with runs.listen(f"runs/{name}/stream") as stream:
            assert runs.request(f"runs/{name}/stop", "POST", {"force": False}).status == 202
            assert line_of(runs, name)["status"]["label"] == "stopping"
            assert runs.request(f"runs/{name}/stop", "POST", {"force": True}).status == 202
            assert (runs.runs / name / "stop").read_text() == "force"
            last, code = until_closed(stream)
        assert code == CloseCode.OVER
        assert last["status"]["state"] == "stopped"
        assert line_of(runs, name)["status"]["label"] == "stopped"


def test_a_run_whose_kernel_was_killed_is_reported_and_can_be_deleted(runs):
    with real_run(runs, CELL) as (name, kernel):
        until(lambda: state_of(runs, name) == "running")
        kernel.kill()
        kernel.wait(10)
        line = until(lambda: (line := line_of(runs, name))["status"]["over"] and line)
        assert line["kernel"]["alive"] is False
        assert line["status"]["state"] in ("failed", "lost")
        assert line["failure"]
        refused = runs.request(f"runs/{name}/stop", "POST", {})
        assert refused.status == 409
        assert "is already over" in refused.json["message"]
        with runs.listen(f"runs/{name}/stream") as stream:
            whole, code = until_closed(stream)
        assert code == CloseCode.OVER
        assert whole["failure"]["error"]
        assert runs.request(f"runs/{name}", "DELETE").status == 204
