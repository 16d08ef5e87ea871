"""pp says how long ranks wait for each other, how much of it is the bubble, and what helps."""

from __future__ import annotations

import re

import pytest
from idioms.comparison import run_both
from idioms.idiom import TRAIN

from nbmgpu.strategies.pp.plan import SegmentPlan, Stage

SLOW = """
import time
class Slow(nn.Linear):
    def forward(self, x):
        time.sleep(0.005)
        return super().forward(x)
model = nn.Sequential({layers})
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""
EVEN = "*(Slow(8, 8) for _ in range(4))"
UNEVEN = "Slow(8, 8), Slow(8, 8), nn.Linear(8, 64), nn.Linear(64, 4)"
DROPOUT = "Slow(8, 8), nn.Dropout(0.5), Slow(8, 4)"
MIXING = "Slow(8, 8), nn.Unflatten(1, (2, 4)), nn.LSTM(4, 8)"


def text_of(layers: str, cell: str = TRAIN, ranks: int = 2, **options: object) -> str:
    """Train a model under pp, and return what the run says about its stages."""
    setup = SLOW.format(layers=layers)
    notices = run_both(cell, setup, ranks, strategy="pp", **options).run.view.notices
    return notices["idle-stages"].text


def shares(text: str) -> list[float]:
    return [int(number) / 100 for number in re.findall(r"rank \d+ computed (\d+)%", text)]


@pytest.mark.parametrize(
    ("owners", "ranks", "microbatches", "expected"),
    [
        ((0, 1), 2, 4, 1 / 5),
        ((0, 1, 2, 3), 4, 8, 3 / 11),
        ((0, 1), 2, 1, 1 / 2),
        ((0, 1, 0, 1), 2, 4, 1 / 9),  # interleaved: (P - 1) / (2 M + P - 1)
        ((1,), 4, 1, 3 / 4),  # a segment of one stage
    ],
)
def test_the_bubble(
    owners: tuple[int, ...], ranks: int, microbatches: int, expected: float
) -> None:
    stages = tuple(Stage(owner, i, i + 1) for i, owner in enumerate(owners))
    plan = SegmentPlan(stages, (), (), microbatches, batch_size=8)
    assert plan.bubble(ranks) == pytest.approx(expected)


def test_even_stages_wait_for_little_more_than_the_bubble() -> None:
    text = text_of(EVEN, microbatches=4)
    assert "wait for 20%, the pipeline's bubble: (P - 1) / (M + P - 1), with P = 2" in text
    assert text.endswith("--microbatches 8 makes it 11%.")
    assert all(0.3 < share < 0.9 for share in shares(text))
    fewer = text_of(EVEN, microbatches=1)
    assert "wait for 50%" in fewer
    assert all(a < b for a, b in zip(shares(fewer), shares(text), strict=True))


def test_uneven_stages_are_to_be_balanced_by_time() -> None:
    text = text_of(UNEVEN)
    first, second = shares(text)
    assert first > 0.5
    assert second < 0.3
    assert "--balance time gives each rank about the same" in text
    balanced = text_of(UNEVEN, balance="time")
    assert "--balance time" not in balanced
    assert min(shares(balanced)) > second


def test_whole_batches_are_explained() -> None:
    assert "--microbatches 4 overlaps the stages, with other random" in text_of(DROPOUT)
    recurrent = TRAIN.replace("model(x)", "model(x)[0].sum(1)[:, :4]")
    assert "so stages cannot overlap; --strategy tp or fsdp" in text_of(MIXING, recurrent)


def test_the_smallest_parts_need_larger_batches() -> None:
    assert text_of(EVEN, ranks=4, microbatches=8).endswith(
        "Larger batches, in more microbatches, make it smaller."
    )


def test_it_is_in_the_summary(capsys: pytest.CaptureFixture[str]) -> None:
    text_of(EVEN)
    assert "the pipeline's bubble" in capsys.readouterr().out
