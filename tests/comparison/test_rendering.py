"""The conclusions and notes about the rows of a comparison."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from nbmgpu.comparison.comparison import Comparison
from nbmgpu.comparison.measurements import FinalLoss, StepTiming
from nbmgpu.comparison.notes import notes
from nbmgpu.comparison.rendering import as_html, closing
from nbmgpu.comparison.request import parse
from nbmgpu.comparison.trial import ONE_DEVICE_NAME, Trial, _compared
from nbmgpu.devices.probe import Machine, probe

BASELINE = Trial(
    ONE_DEVICE_NAME, 1, "finished", timing=StepTiming(20, 5, 0.02, 400.0),
    loss=FinalLoss(1.0, 0.0, agrees=True), speed_up=1.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def machine() -> Machine:
    return probe()


def row(name: str = "ddp", ranks: int = 2, state: str = "finished", **more: object) -> Trial:
    steps = {"steps": 20, "step_time": 0.02, "samples_per_second": 400.0}
    may_differ = more.pop("may_differ", "")
    loss = FinalLoss(more.pop("loss", 1.0), explanation=more.pop("explanation", ""))
    timing = StepTiming(**{key: more.pop(key, value) for key, value in steps.items()})
    trial = Trial(name, ranks, state, line=f"%%mgpu -s {name}", timing=timing, loss=loss, **more)
    return _compared(trial, BASELINE, 1e-4, may_differ)


def compared(machine: Machine, *rows: Trial, line: str = "", **more: object) -> Comparison:
    return Comparison(parse("compare", f"--cpu {line}"), (BASELINE, *rows), machine, **more)


def test_the_best_row_is_by_samples_if_all_rows_have_them_else_by_steps(machine: Machine) -> None:
    slower, faster = (
        row(step_time=0.02, samples_per_second=500.0),
        row("fsdp", step_time=0.04, samples_per_second=600.0),
    )
    assert compared(machine, slower, faster).best is faster
    uncounted = row("zero2", step_time=0.01, samples_per_second=None)
    assert compared(machine, slower, faster, uncounted).best is uncounted


def test_explanations_are_shown_only_for_different_losses(machine: Machine) -> None:
    comparison = compared(machine, row(may_differ="reads numbers"))
    assert "Fastest with the loss of one device" in closing(comparison)[0]
    assert not any("reads numbers" in note for note in notes(comparison))
    comparison = compared(
        machine, row(may_differ="reads numbers", explanation="drops out", loss=2.0)
    )
    assert comparison.best is comparison.rows[1]
    assert closing(comparison)[0].startswith("Fastest: ddp")
    text = "ddp on 2 drops out; reads numbers: its loss may differ from one device's."
    assert text in notes(comparison)


def test_an_implausible_speed_up_is_marked(machine: Machine) -> None:
    (text,) = closing(compared(machine, row(samples_per_second=400 * 13.0)))
    assert "13.00 times one device, which is implausible: other processes disturbed" in text
    (text,) = closing(compared(machine, row(samples_per_second=700.0)))
    assert text == "Fastest with the loss of one device: ddp on 2 ranks, 1.75 times one device."


def test_no_line_is_suggested_if_one_device_is_faster(machine: Machine) -> None:
    slower = compared(machine, row(samples_per_second=320.0))
    assert closing(slower) == [
        "Fastest: one device.",
        "The best of several ranks is ddp on 2 ranks, at 0.80 times its speed.",
    ]
    assert slower.line == ""


@pytest.mark.parametrize(
    ("rows", "more", "text"),
    [
        ([], {"left_out": 3, "why": "Stopped"}, "Stopped: there is nothing to compare."),
        ([row(sharded=False)], {}, "Ranks did not share the work, so there is no fastest."),
        ([row(ranks=1)], {}, "No run had several ranks."),
        ([row(loss=2.0)], {}, "No run finished with the loss of one device."),
        (
            [row(state="stopped", step_time=None, samples_per_second=None)],
            {},
            "No run on several ranks finished with enough steps to time.",
        ),
    ],
)
def test_the_reason_why_no_row_is_the_best(
    machine: Machine, rows: list[Trial], more: dict[str, object], text: str
) -> None:
    assert closing(compared(machine, *rows, **more)) == [text]


def test_nan_agrees_only_with_nan() -> None:
    timing, loss = StepTiming(20, step_time=0.02), FinalLoss(math.nan)
    baseline = Trial(ONE_DEVICE_NAME, 1, "finished", timing=timing, loss=loss)
    both = _compared(Trial("ddp", 2, "finished", timing=timing, loss=loss), baseline, 1e-4)
    assert both.loss.agrees
    assert not row(loss=math.nan).loss.agrees


def test_missing_and_unequal_steps_are_noted(machine: Machine) -> None:
    text = list(notes(compared(machine, row(steps=10), line="--steps 100")))
    assert "The cell took 20 steps, fewer than the 100 requested." in text
    assert "Runs took different numbers of steps (10, 20): their losses are not comparable." in text


def test_a_list_of_devices_refers_to_scale(machine: Machine) -> None:
    text = " ".join(notes(compared(machine, row(), line="--gpus 1,2")))
    assert "To compare numbers of ranks: %%mgpu scale --gpus 1,2" in text
    assert "%%mgpu scale" not in " ".join(notes(compared(machine, row(), line="--gpus 2")))


def test_nodes_are_compared_also_where_one_device_was_not_measured(machine: Machine) -> None:
    failed = Trial(ONE_DEVICE_NAME, 1, "failed", reason="out of memory.")
    rates = {1: 400.0, 2: 600.0}
    rows = [
        replace(row(ranks=4 * nodes, samples_per_second=rate), nodes=nodes, speed_up=None)
        for nodes, rate in rates.items()
    ]
    request = parse("scale", "--engine slurm --nodes 1,2 --gpus 4")
    comparison = Comparison(request, (failed, *rows), machine)
    assert closing(comparison)[-1] == "2 nodes: 1.50 times the speed of 1 node, 75% of 2 times."
    html = as_html(comparison)
    assert "<svg" not in html, "there is no speed-up to draw"
    (row_of_failed,) = re.findall(r"<tr><td[^>]*>one device</td>.*?</tr>", html)
    assert re.findall(r">([^<>]+)</td>", row_of_failed)[:3] == ["one device", "1", "1"]
    assert row_of_failed.count("<td") == 4
    assert "colspan='11'" in row_of_failed
    assert html.count("<th ") == 13


def test_nodes_with_other_numbers_of_ranks_are_not_compared(machine: Machine) -> None:
    request = parse("scale", "--engine slurm --nodes 2 --gpus 2")
    comparison = Comparison(request, (BASELINE, replace(row(ranks=4), nodes=2)), machine)
    assert not any("nodes: " in text for text in closing(comparison))
