"""Several runs side by side: columns, curves, axes and differences of cells."""

import math
import re
from html import unescape

import pytest

import nbmgpu
from nbmgpu.errors import OptionError
from nbmgpu.report.curve_chart import line_style
from nbmgpu.report.curves import decode_points
from nbmgpu.report.run_comparison import comparison_of
from nbmgpu.report.run_comparison.payload import MAX_RUNS

CELL = "opt = SGD(lr={lr})\nfor x, y in loader:\n    loss = criterion(model(x), y)\n"


@pytest.fixture
def two_runs(staged):
    """A run that ended at loss 0.5 and accuracy 0.9, and a slower, better one under fsdp."""
    runs = []
    for index, (strategy, last, lr) in enumerate([("ddp", 0.5, 0.1), ("fsdp", 0.25, 0.01)]):
        values = {"mesh": [], "gpus": 2, "precision": ("bf16" if index else None), "clip": 1.0}
        played = staged(2, strategy=strategy, cell=CELL.format(lr=lr), values=values)
        played.start()
        for rank in range(2):
            played.points("loss", [1, 2, 3], [2.0, 0.1, last], rank=rank, weight=0.5)
        played.points("accuracy", [3], [0.9 + index / 100])
        for step in (1, 2, 3):
            position = {"samples": 8 * step, "train_step": step}
            played.progress_at(100.0 + step, step % 2, 2, epoch=1 + step // 2, **position)
            played.vitals_at(100.0 + step, 0, step, memory=(4 - step) << 20, step_time=0.1)
        played.finish()
        played.close()
        runs.append(played.run)
    return runs


def column(comparison, name):
    (found,) = [column for column in comparison.columns if column.name == name]
    return found


def texts(comparison, name):
    return [cell.text for cell in column(comparison, name).cells]


def test_the_table_has_what_differs_first(two_runs):
    found = nbmgpu.compare_runs(*(run.id for run in two_runs))
    assert [column.differs for column in found.columns] == sorted(
        (column.differs for column in found.columns), reverse=True
    )
    assert found.columns[0].name == "strategy"
    assert texts(found, "strategy") == ["ddp", "fsdp"]
    assert texts(found, "--precision") == ["", "bf16"]
    assert not [c for c in found.columns if c.name == "--clip"]  # equal, and only a setting
    assert texts(found, "loss") == ["0.5", "0.25"]
    assert texts(found, "lowest loss") == ["0.1", "0.1"]
    assert column(found, "accuracy").best == "highest"
    assert texts(found, "memory of a rank") == ["3.0 MiB", "3.0 MiB"]  # the most, not the newest
    assert texts(found, "steps") == ["3", "3"]


def test_the_frame_has_a_row_per_run_and_numbers(two_runs):
    frame = nbmgpu.compare_runs(*two_runs).to_frame()
    assert list(frame.index) == [run.id for run in two_runs]
    assert frame["loss"].tolist() == [0.5, 0.25]
    assert frame.sort_values("loss")["strategy"].tolist() == ["fsdp", "ddp"]
    assert list(frame.columns)[:3] == ["name", "tags", "note"]
    assert frame["started"].dt.year.min() > 2000


def test_each_metric_has_a_line_for_each_run_that_logged_it(two_runs, staged):
    empty = staged(1)
    empty.start()
    empty.run.refresh()
    for run in two_runs:
        run.refresh()
    found = comparison_of([*two_runs, empty.run])
    assert [metric.name for metric in found.metrics] == ["loss", "accuracy"]
    assert found.metrics[0].runs == [0, 1]
    steps, values = decode_points(found.metrics[0].lines[1].points)
    assert steps.tolist() == [1, 2, 3]
    assert values.tolist() == pytest.approx([2.0, 0.1, 0.25])
    assert found.runs[2].axes.seconds == ""  # it has no step yet


def test_steps_have_positions_in_samples_epochs_and_seconds(two_runs):
    axes = nbmgpu.compare_runs(*two_runs).runs[0].axes
    assert [part.tolist() for part in decode_points(axes.samples)] == [[0, 1, 2, 3], [0, 8, 16, 24]]
    steps, epochs = decode_points(axes.epochs)
    assert steps.tolist() == [0, 1, 2, 3]
    assert epochs.tolist() == [0, 0.5, 1, 1.5]
    steps, seconds = decode_points(axes.seconds)
    assert steps.tolist() == [0, 1, 2, 3]
    assert (seconds[2:] - seconds[1:-1]).tolist() == pytest.approx([1, 1])


def test_cells_are_compared_with_the_first(two_runs):
    first, second = nbmgpu.compare_runs(*two_runs).cells
    assert first.lines == []
    kinds = [(line.kind, line.text) for line in second.lines]
    assert kinds[:2] == [("removed", "opt = SGD(lr=0.1)"), ("added", "opt = SGD(lr=0.01)")]
    assert {kind for kind, _ in kinds[2:]} == {"same"}


def test_html_escapes_names_and_cells(staged):
    runs = []
    for name in ("<script>alert(1)</script>", "b"):
        played = staged(1, cell=f"# <b>{name}</b>\nx = 1\n", values={"name": name})
        played.start()
        played.points("<i>loss</i>", [1, 2], [1.0, 2.0])
        played.finish()
        played.close()
        runs.append(played.run)
    html = nbmgpu.compare_runs(*runs)._repr_html_()
    assert "<script" not in html
    assert "<i>" not in html
    assert "<b>" not in html
    assert "&lt;script&gt;alert(1)" in html
    assert html.count("<polyline") == 2  # a line per run
    assert "alert(1)" in repr(nbmgpu.compare_runs(*runs))


def test_a_long_name_is_cut_by_the_browser_and_is_whole_in_its_title(staged):
    name = "learning rate " * 5 + '"0.1"'
    runs = [staged(1, values={"name": each}).run for each in (name, "short")]
    html = nbmgpu.compare_runs(*runs)._repr_html_()
    title = html.split('title="')[1].split('"')[0]
    assert unescape(title) == name
    assert "text-overflow: ellipsis; white-space: nowrap" in html


def test_runs_of_the_same_cell_are_called_by_strategy_and_time(staged):
    runs = [staged(1, strategy=strategy, cell="x = 1").run for strategy in ("ddp", "fsdp", "ddp")]
    other = staged(1, cell="y = 2").run
    runs[2].label(name="best")
    titles = [run.title for run in nbmgpu.compare_runs(*runs, other).runs]
    assert re.fullmatch(r"ddp, \d\d:\d\d:\d\d", titles[0])
    assert re.fullmatch(r"fsdp, \d\d:\d\d:\d\d", titles[1])
    assert titles[2:] == ["best", "y = 2"]


def test_two_different_runs_are_needed(two_runs):
    run = two_runs[0]
    with pytest.raises(OptionError, match="From 2 to 32 different ones") as raised:
        nbmgpu.compare_runs(run.id, run)
    assert f"nbmgpu.compare_runs('{two_runs[1].id}', '{run.id}')" in str(raised.value)
    with pytest.raises(OptionError, match="There is no run 'nothing'"):
        nbmgpu.compare_runs(run, "nothing")


def finished(staged, curves, cell="x = 1\n", **fields):
    """A finished run of one rank with curves by name."""
    played = staged(1, cell=cell, **fields)
    played.start()
    for name, values in curves.items():
        played.points(name, list(range(1, len(values) + 1)), values)
    played.finish()
    played.close()
    return played.run


def test_a_last_value_that_is_not_finite_is_shown_and_never_the_best(staged):
    diverged = finished(staged, {"loss": [1.0, 0.5, math.nan]})
    found = nbmgpu.compare_runs(diverged, finished(staged, {"loss": [1.0, 0.9]}))
    assert texts(found, "loss") == ["nan", "0.9"]
    assert column(found, "loss").cells[0].value is None
    assert texts(found, "lowest loss") == ["0.5", "0.9"]


@pytest.mark.parametrize(
    ("metric", "best"),
    [
        ("val/accuracy", "highest"), ("eval_f1", "highest"), ("top-5", "highest"),
        ("eval_samples_per_second", "highest"), ("dice_loss", "lowest"), ("mse", "lowest"),
        ("train/learning_rate", ""), ("val/lr", ""), ("epoch", ""), ("grad_norm", ""),
    ],
)  # fmt: skip
def test_which_value_is_the_best_follows_from_the_name(staged, metric, best):
    run, other = (finished(staged, {metric: [value]}) for value in (1.0, 2.0))
    assert column(nbmgpu.compare_runs(run, other), metric).best == best


def test_the_frame_has_nan_where_a_run_has_no_value_and_loses_no_column(staged):
    run = finished(staged, {"loss": [1.0], "state": [3.0]}, values={"steps": 20})
    other = finished(staged, {}, values={"steps": 10})
    frame = nbmgpu.compare_runs(run, other).to_frame()
    assert frame["loss"].dtype == float
    assert frame["loss"].min() == 1.0
    assert frame["--steps"].tolist() == [20, 10]
    assert frame["state (metric)"].tolist()[0] == 3.0
    assert set(frame["state (result)"]) == {"finished"}


def test_a_loader_for_each_pass_has_no_epochs(staged):
    played = staged(1)
    played.start()
    for step in range(1, 7):
        played.progress(step % 3 or 3, 3, epoch=1, samples=8 * step, train_step=step)
    clock = played.polled().view.clock
    assert clock.epochs == []
    assert [step for step, _ in clock.samples] == [1, 2, 3, 4, 5, 6]


def test_a_resumed_run_is_compared_by_step_only(staged):
    run = finished(staged, {"loss": [1.0, 2.0]}, values={"resume": "newest"})
    axes = nbmgpu.compare_runs(run, finished(staged, {"loss": [1.0, 2.0]})).runs[0].axes
    assert (axes.seconds, axes.epochs, axes.samples) == ("", "", "")


def test_runs_whose_colours_repeat_have_dashes(staged):
    runs = [finished(staged, {"loss": [2.0, 1.0]}) for _ in range(12)]
    html = nbmgpu.compare_runs(*runs)._repr_html_()
    assert "<g fill='none' stroke='#3b82f6' stroke-width" in html
    assert "<g fill='none' stroke='#3b82f6' stroke-dasharray='7 4' stroke-width" in html
    marks = re.findall(r"●|<path d='M0,4H18' stroke='(\S+)' stroke-dasharray='7 4'", html)
    assert marks == [""] * 10 + ["#3b82f6", "#e08b00"]
    assert len({line_style(place) for place in range(MAX_RUNS)}) == MAX_RUNS
