"""``runs/<id>/traces/<rank>`` sends the trace of a rank as it is, and no other file."""

from __future__ import annotations

import gzip
import json

NAME = "20260101-120000-000aa"
TRACE = gzip.compress(json.dumps({"traceEvents": []}).encode())


def test_a_trace_is_downloaded_as_it_is(runs, stage):
    run = stage(2, id=NAME)
    run.profile(1, TRACE)
    answer = runs.request(f"runs/{NAME}/traces/1")
    assert answer.status == 200
    assert answer.body == TRACE  # compressed: the browser stores the file, and does not unpack it
    assert answer.headers["Content-Type"] == "application/gzip"
    name = f"{NAME}-trace_rank1.json.gz"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{name}"'
    assert "Content-Encoding" not in answer.headers
    parts = runs.request(f"runs/{NAME}").json
    assert [row["nbytes"] for row in parts["profile"]["rows"]] == [len(TRACE)]


def test_what_is_no_trace_is_not_found(runs, stage, tmp_path):
    run = stage(2, id=NAME)
    for address in (f"runs/{NAME}/traces/0", f"runs/{NAME}/traces/7", "runs/none/traces/0"):
        missing = runs.request(address)
        assert (missing.status, missing.json["message"] != "") == (404, True)
    (tmp_path / "secret").write_text("secret")
    (run.run.folder / "trace_rank0.json.gz").symlink_to(tmp_path / "secret")
    assert runs.request(f"runs/{NAME}/traces/0").status == 404
