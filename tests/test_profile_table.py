"""The table of ``--profile``: as text, as HTML, in summaries, and as a part of the panel."""

from __future__ import annotations

import pytest

from nbmgpu.report.snapshot import Snapshot
from nbmgpu.report.summary import summary_html, summary_text
from nbmgpu.runs.profile_rendering import milliseconds


def test_a_row_per_rank_with_its_trace(staged):
    run = staged(2)
    run.profile(1, b"12345", hidden=0.0)
    run.profile(0)
    table = run.run.profile
    assert [(row.rank, row.steps, row.nbytes) for row in table.rows] == [
        (0, "5-10", 5),
        (1, "5-10", 5),
    ]
    assert [row.trace for row in table.rows] == [
        str(run.run.folder / f"trace_rank{rank}.json.gz") for rank in range(2)
    ]
    lines = repr(table).splitlines()
    assert lines[0].split() == [
        "rank",
        "steps",
        "ms",
        "per",
        "step",
        "compute",
        "communication",
        "data",
        "host",
        "hidden",
    ]
    assert lines[1].split() == ["0", "5-10", "20.0", "10.0", "5.0", "4.0", "1.0", "1.0"]
    assert lines[2].split()[-1] == "0.00"
    assert lines[3].startswith("Traces (10 bytes), to open at https://ui.perfetto.dev: ")
    html = table._repr_html_()
    assert html.count("<tr>") == 3
    assert html.count('scope="col"') == 8


def test_the_summaries_have_the_mean_of_the_ranks(staged):
    run = staged(2)
    assert "rofile" not in summary_text(run.run) + summary_html(run.run)
    run.profile(0)
    run.profile(1, step_time=0.04, host=0.021)
    run.finish()
    text = summary_text(run.run)
    mean = "30.0 ms per step = 10.0 compute + 5.0 communication + 4.0 data + 11.0 host"
    assert f"steps 5-10, mean of 2 ranks: {mean}" in text
    assert f'nbmgpu.find_run("{run.run.id}").profile' in text
    assert str(run.run.folder / "trace_rank*.json.gz") in text
    html = summary_html(run.run)
    assert f"<summary>Profile of steps 5-10, mean of 2 ranks: {mean}</summary>" in html


def test_without_the_option_there_are_no_rows(staged):
    run = staged(1)
    assert repr(run.run.profile).startswith("No step was profiled: %%mgpu --profile")
    assert "No step was profiled" in run.run.profile._repr_html_()


def test_the_panel_gets_the_table_when_it_has_changed(staged):
    run = staged(1)
    snapshot = Snapshot(run.run)
    assert snapshot.changed()["profile"] == {"rows": []}
    run.profile(0)
    run.run.poll()
    row = snapshot.changed()["profile"]["rows"][0]
    assert (row["step_time"], row["hidden"]) == (0.02, 0.001)
    assert "profile" not in snapshot.changed()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.00"), (0.00035, "0.35"), (0.000999, "1.0"), (0.0999, "99.9"), (1.234, "1,234")],
)
def test_milliseconds(seconds, text):
    assert milliseconds(seconds) == text
