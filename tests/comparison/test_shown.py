"""What is said of rows, whatever they are."""

from __future__ import annotations

import math

import pytest

from nbmgpu.comparison.comparison import Comparison
from nbmgpu.comparison.rendering import closing, notes
from nbmgpu.comparison.request import parse
from nbmgpu.comparison.trial import ONE_DEVICE_NAME, Trial, _compared
from nbmgpu.devices.probe import Machine, probe

ALONE = Trial(
    ONE_DEVICE_NAME, 1, "finished", steps=20, step_time=0.02, samples_per_second=400.0, loss=1.0,
    speed_up=1.0, efficiency=1.0, loss_difference=0.0, agrees=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def machine() -> Machine:
    return probe()


def row(name: str = "ddp", ranks: int = 2, state: str = "finished", **more: object) -> Trial:
    values = {"steps": 20, "step_time": 0.02, "samples_per_second": 400.0, "loss": 1.0, **more}
    may_differ = values.pop("may_differ", "")
    trial = Trial(name, ranks, state, line=f"%%mgpu -s {name}", **values)
    return _compared(trial, ALONE, 1e-4, may_differ)


def compared(machine: Machine, *rows: Trial, line: str = "", **more: object) -> Comparison:
    return Comparison(parse("compare", f"--cpu {line}"), (ALONE, *rows), machine, **more)


def test_the_best_is_found_by_samples_or_by_steps_never_by_both(machine: Machine) -> None:
    slower, faster = (
        row(step_time=0.02, samples_per_second=500.0),
        row("fsdp", step_time=0.04, samples_per_second=600.0),
    )
    assert compared(machine, slower, faster).best is faster
    uncounted = row("zero2", step_time=0.01, samples_per_second=None)
    assert compared(machine, slower, faster, uncounted).best is uncounted


def test_what_may_explain_another_loss_is_said_of_another_loss_alone(machine: Machine) -> None:
    comparison = compared(machine, row(may_differ="reads numbers"))
    assert "Fastest with the loss of one device" in closing(comparison)[0]
    assert not any("reads numbers" in note for note in notes(comparison))
    comparison = compared(
        machine, row(may_differ="reads numbers", explanation="drops out", loss=2.0)
    )
    assert comparison.best is comparison.rows[1]
    assert closing(comparison)[0].startswith("Fastest: ddp")
    said = "ddp on 2 drops out; reads numbers: its loss may differ from one device's."
    assert said in notes(comparison)


def test_a_speed_up_beyond_belief_is_not_praised(machine: Machine) -> None:
    (said,) = closing(compared(machine, row(samples_per_second=400 * 13.0)))
    assert "13.00 times one device, which is implausible: other processes disturbed" in said
    (said,) = closing(compared(machine, row(samples_per_second=700.0)))
    assert said == "Fastest with the loss of one device: ddp on 2 ranks, 1.75 times one device."


def test_no_line_is_offered_where_one_device_is_faster(machine: Machine) -> None:
    slower = compared(machine, row(samples_per_second=320.0))
    assert closing(slower) == [
        "Fastest: one device.",
        "The best of several ranks is ddp on 2 ranks, at 0.80 times its speed.",
    ]
    assert slower.line == ""


@pytest.mark.parametrize(
    ("rows", "more", "said"),
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
def test_why_there_is_no_fastest(machine: Machine, rows: list[Trial], more: dict[str, object],
                                 said: str) -> None:  # fmt: skip
    assert closing(compared(machine, *rows, **more)) == [said]


def test_not_a_number_on_both_sides_is_one_devices_loss() -> None:
    alone = Trial(ONE_DEVICE_NAME, 1, "finished", steps=20, step_time=0.02, loss=math.nan)
    both = _compared(
        Trial("ddp", 2, "finished", steps=20, step_time=0.02, loss=math.nan), alone, 1e-4
    )
    assert both.agrees
    assert not row(loss=math.nan).agrees


def test_fewer_steps_and_other_numbers_of_steps_are_told(machine: Machine) -> None:
    said = list(notes(compared(machine, row(steps=10), line="--steps 100")))
    assert "The cell took 20 steps, fewer than the 100 requested." in said
    assert "Runs took different numbers of steps (10, 20): their losses are not comparable." in said


def test_who_lists_devices_is_told_how_numbers_of_ranks_are_compared(machine: Machine) -> None:
    said = " ".join(notes(compared(machine, row(), line="--gpus 1,2")))
    assert "To compare numbers of ranks: %%mgpu scale --gpus 1,2" in said
    assert "%%mgpu scale" not in " ".join(notes(compared(machine, row(), line="--gpus 2")))
