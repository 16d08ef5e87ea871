"""What is said of rows, whatever they are."""

from __future__ import annotations

import math

import pytest

from nbmgpu.comparison.comparison import Comparison
from nbmgpu.comparison.rendering import closing, notes
from nbmgpu.comparison.request import parse
from nbmgpu.comparison.trial import ONE_DEVICE_NAME, Trial, _against
from nbmgpu.devices.devices import Machine, probe

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
    return _against(trial, ALONE, 1e-4, may_differ)


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
    assert "Fastest with one device's loss" in closing(comparison)[0]
    assert not any("reads numbers" in note for note in notes(comparison))
    comparison = compared(machine, row(may_differ="reads numbers", chance="drops out", loss=2.0))
    assert comparison.best is comparison.rows[1]
    assert closing(comparison)[0].startswith("Fastest: ddp")
    said = "ddp on 2 drops out; reads numbers: its loss need not be one device's."
    assert said in notes(comparison)


def test_a_speed_up_beyond_belief_is_not_praised(machine: Machine) -> None:
    (said,) = closing(compared(machine, row(samples_per_second=400 * 13.0)))
    assert "13.00 times one device, which is not possible: others were at work" in said
    (said,) = closing(compared(machine, row(samples_per_second=700.0)))
    assert said == "Fastest with one device's loss: ddp on 2 ranks, 1.75 times one device."


@pytest.mark.parametrize(
    ("rows", "more", "said"),
    [
        ([], {"left_out": 3, "why": "Stopped"}, "Stopped: there is nothing to compare."),
        ([row(split=False)], {}, "Ranks have not shared the work, so there is no fastest."),
        ([row(ranks=1)], {}, "No run had several ranks."),
        ([row(loss=2.0)], {}, "Nothing ran to its end with one device's loss."),
        (
            [row(state="stopped", step_time=None, samples_per_second=None)],
            {},
            "No run on several ranks came to its end with steps that could be timed.",
        ),
    ],
)
def test_why_there_is_no_fastest(machine: Machine, rows: list[Trial], more: dict[str, object],
                                 said: str) -> None:  # fmt: skip
    assert closing(compared(machine, *rows, **more)) == [said]


def test_not_a_number_on_both_sides_is_one_devices_loss() -> None:
    alone = Trial(ONE_DEVICE_NAME, 1, "finished", steps=20, step_time=0.02, loss=math.nan)
    both = _against(
        Trial("ddp", 2, "finished", steps=20, step_time=0.02, loss=math.nan), alone, 1e-4
    )
    assert both.agrees
    assert not row(loss=math.nan).agrees


def test_fewer_steps_and_other_numbers_of_steps_are_told(machine: Machine) -> None:
    said = list(notes(compared(machine, row(steps=10), line="--steps 100")))
    assert "The cell took 20 steps, fewer than the 100 that were asked for." in said
    assert "Runs took different numbers of steps (10, 20): their losses are not comparable." in said


def test_who_lists_devices_is_told_how_numbers_of_ranks_are_compared(machine: Machine) -> None:
    said = " ".join(notes(compared(machine, row(), line="--gpus 1,2")))
    assert "numbers of ranks are compared by %%mgpu scale --gpus 1,2" in said
    assert "%%mgpu scale" not in " ".join(notes(compared(machine, row(), line="--gpus 2")))
