"""The table of which rank stores what: its rows, as text, as HTML, and in the summary."""

from __future__ import annotations

import pytest
from staged import StagedRun

from nbmgpu.report.snapshot import Snapshot
from nbmgpu.report.summary import summary_html, summary_text
from nbmgpu.runs.shard_rendering import percent
from nbmgpu.runs.shard_table import MAX_ROWS

MESH = {"mesh": ["dp=1", "pp=2"]}
EVIL = "<script>.0"


def in_stages(run: StagedRun, count: int, elements: int = 1000) -> None:
    """Two ranks report ``count`` layers, of which each stores a half, and a shared embedding."""
    for rank in range(2):
        stored = {f"layers.{i}": elements * ((2 * i >= count) == rank) for i in range(count)}
        whole = dict.fromkeys(stored, elements)
        run.shards(rank, {"embed": 10} | whole, {"embed": 5} | stored)


def test_a_row_per_layer_and_a_column_per_rank(staged) -> None:
    run = staged(2, strategy="pp", values=MESH)
    in_stages(run, 2)
    table = run.run.shards
    assert table.ranks == ["pp 0", "pp 1"]  # dp has size 1
    assert [(row.name, row.stored) for row in table.rows] == [
        ("embed", [5, 5]),
        ("layers.0", [1000, 0]),
        ("layers.1", [0, 1000]),
    ]
    assert (table.total.elements, table.total.nbytes) == (2010, [4020, 4020])


def test_there_are_no_rows_until_all_ranks_have_reported_the_same_layers(staged) -> None:
    run = staged(2, strategy="fsdp")
    assert "No shards of parameters were reported: fsdp" in repr(run.run.shards)
    run.shards(0, {"a": 4}, {"a": 2})
    assert run.run.shards.rows == []
    run.shards(1, {"a": 4}, {"a": 2})
    assert [row.name for row in run.run.shards.rows] == ["a"]
    run.shards(0, {"a": 4, "b": 4}, {"a": 2, "b": 2})
    assert run.run.shards.rows == []


def test_equal_neighbours_share_a_row_in_deep_models(staged) -> None:
    run = staged(2, strategy="pp")
    in_stages(run, 80)
    table = run.run.shards
    assert [row.name for row in table.rows] == ["embed", "layers.0-39", "layers.40-79"]
    assert [row.stored for row in table.rows[1:]] == [[40_000, 0], [0, 40_000]]


def test_unequal_layers_share_rows_where_there_are_too_many(staged) -> None:
    run = staged(1, strategy="fsdp")
    sizes = {f"layers.{i}": i + 1 for i in range(100)} | {"head": 7}
    run.shards(0, sizes, sizes)
    table = run.run.shards
    assert len(table.rows) <= MAX_ROWS
    assert [row.name for row in table.rows][:2] == ["layers.0-2", "layers.3-5"]
    assert table.rows[-1].name == "layers.99 to head"
    assert sum(row.elements for row in table.rows) == table.total.elements == sum(sizes.values())


def test_text(staged) -> None:
    run = staged(2, strategy="pp", values=MESH)
    in_stages(run, 2)
    assert repr(run.run.shards).splitlines() == [
        "layer       parameters       rank 0       rank 1",
        "                               pp 0         pp 1",
        "embed               10  ██··   50 %  ██··   50 %",
        "layers.0         1,000  ████  100 %  ····    0 %",
        "layers.1         1,000  ····    0 %  ████  100 %",
        "all layers       2,010      3.9 KiB      3.9 KiB",
    ]


def test_html_is_escaped_and_has_headers(staged) -> None:
    run = staged(1, strategy="tp")
    assert run.run.shards._repr_html_().startswith("<p>No shards")
    run.shards(0, {EVIL: 3}, {EVIL: 1})
    html = run.run.shards._repr_html_()
    assert "<script>" not in html
    assert '<th scope="row" style="text-align: left">&lt;script&gt;.0</th>' in html
    assert ">33 %</td>" in html


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0 %"), (0.001, "< 1 %"), (0.25, "25 %"), (0.999, "> 99 %"), (1, "100 %")],
)
def test_shares_are_exact_only_at_the_ends(share: float, text: str) -> None:
    assert percent(share) == text


def test_the_summary_has_the_shares_and_the_table(staged) -> None:
    run = staged(2, strategy="pp")
    assert "rank stores" not in summary_text(run.run) + summary_html(run.run)
    for rank, stored in enumerate([3, 1]):
        run.shards(rank, {"layers.0": 4}, {"layers.0": stored})
    run.start()
    run.finish()
    line = "each rank stores 25 % to 75 % of 4 parameters: 4 bytes to 12 bytes"
    code = f'nbmgpu.find_run("{run.run.id}").shards'
    assert f"{line}; by layer: {code}" in summary_text(run.run)
    html = summary_html(run.run)
    assert f"<summary>Which rank holds what: {line}</summary><table>" in html


def test_the_payload_is_computed_only_after_new_reports(staged) -> None:
    run = staged(2, strategy="pp")
    in_stages(run, 2)
    snapshot = Snapshot(run.polled())
    assert len(snapshot.changed()["shards"]["rows"]) == 3
    assert "shards" not in snapshot.changed()
    in_stages(run, 4)
    run.polled()
    assert len(snapshot.changed()["shards"]["rows"]) == 5
