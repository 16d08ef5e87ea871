"""Whether a loss depends on several samples at once is detected from its operators."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from losses_of_batches import (
    CROSS_SAMPLE,
    GLOBAL_BATCH_SIZE,
    LAYERS,
    NEEDS_SEVERAL,
    PER_SAMPLE,
    SAMPLES,
    SELECTED,
    SUBSETS,
    Loss,
    X,
    Y,
    model,
    normalized,
)
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.flop_counter import FlopCounterMode

from nbmgpu.rank.batch_dependence import BatchDependenceDetector
from nbmgpu.rank.batch_dependence.detector import is_observed
from nbmgpu.rank.loss.graph_reader import read_graph
from nbmgpu.rank.reporting.recorder import Recorder
from nbmgpu.runs.event_file import EventTail, EventWriter
from nbmgpu.runs.events import Notice


@pytest.fixture
def detector(tmp_path: Path) -> Iterator[BatchDependenceDetector]:
    events = EventWriter(tmp_path / "events", 0)
    detector = BatchDependenceDetector(Recorder(events))
    yield detector
    detector.close()
    events.close()
    assert _get_current_dispatch_mode() is None


@pytest.fixture
def notices(tmp_path: Path) -> Callable[[], dict[str, str]]:
    """Returns a function that reads the notices so far: their texts by topic."""

    def read() -> dict[str, str]:
        events = EventTail(tmp_path / "events").read()
        return {event.topic: event.text for event in events if isinstance(event, Notice)}

    return read


def step(detector: BatchDependenceDetector, loss: Loss, samples: int = SAMPLES) -> None:
    """A training step on a shard of ``samples``, of a batch twice as large."""
    x, y = X[:samples].clone(), Y[:samples].clone()
    detector.add_batch((x, y), samples, 2 * samples)
    value = loss(model, x, y)
    with detector.paused():
        graph = read_graph(value, samples, 2 * samples)
    detector.check_losses([value], graph, even=True)


@pytest.mark.parametrize("loss", CROSS_SAMPLE.values(), ids=CROSS_SAMPLE)
def test_cross_sample_losses_are_reported(
    detector: BatchDependenceDetector, notices: Any, loss: Loss
) -> None:
    step(detector, loss)
    detector.close()
    assert set(notices()) == {"cross-sample"}


@pytest.mark.parametrize("loss", SUBSETS.values(), ids=SUBSETS)
def test_losses_of_samples_selected_by_position_are_reported(
    detector: BatchDependenceDetector, notices: Any, loss: Loss
) -> None:
    step(detector, loss)
    detector.close()
    assert set(notices()) == {"part-of-batch"}


@pytest.mark.parametrize("loss", SELECTED.values(), ids=SELECTED)
def test_means_over_a_selected_number_of_samples_are_reported(
    detector: BatchDependenceDetector, notices: Any, loss: Loss
) -> None:
    step(detector, loss)
    detector.close()
    assert set(notices()) == {"mean-of-subset"}


WITHIN_SAMPLES = PER_SAMPLE | LAYERS


@pytest.mark.parametrize("samples", [SAMPLES, 1])
@pytest.mark.parametrize("loss", WITHIN_SAMPLES.values(), ids=WITHIN_SAMPLES)
def test_per_sample_losses_are_not_reported(
    detector: BatchDependenceDetector, notices: Any, loss: Loss, samples: int
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step(detector, loss, samples)
    detector.close()
    assert notices() == {}


OF_ONE = {name: loss for name, loss in CROSS_SAMPLE.items() if name not in NEEDS_SEVERAL}


@pytest.mark.parametrize("loss", OF_ONE.values(), ids=OF_ONE)
def test_cross_sample_losses_are_reported_for_shards_of_one_sample(
    detector: BatchDependenceDetector, notices: Any, loss: Loss
) -> None:
    step(detector, loss, samples=1)
    detector.close()
    assert set(notices()) == {"cross-sample"}


@pytest.mark.parametrize("samples", [SAMPLES, 1])
def test_functional_batch_norm_is_reported(
    detector: BatchDependenceDetector, notices: Any, samples: int
) -> None:
    def loss(m: Any, x: Tensor, y: Tensor) -> Tensor:
        tokens = x[:, None].expand(-1, 3, -1)
        return F.cross_entropy(normalized(m(tokens).transpose(1, 2)).mean(2), y)

    step(detector, loss, samples)
    assert set(notices()) == {"batch-norm"}


def test_a_table_of_the_global_batch_is_reported_for_shards_of_one_sample(
    detector: BatchDependenceDetector, notices: Any
) -> None:
    table = torch.ones(2, 5)
    step(detector, lambda m, x, y: F.mse_loss(m(x) * table, table), samples=1)
    detector.close()
    assert set(notices()) == {"cross-sample"}


def test_the_notice_names_the_operator(detector: BatchDependenceDetector, notices: Any) -> None:
    step(detector, CROSS_SAMPLE["distances"])
    assert "(cdist_forward)" in notices()["cross-sample"]


def test_a_step_may_have_several_backward_passes(
    detector: BatchDependenceDetector, notices: Any
) -> None:
    x, y = X.clone(), Y.clone()
    detector.add_batch((x, y), SAMPLES, GLOBAL_BATCH_SIZE)
    for a, b in zip(x.split(4), y.split(4), strict=True):
        loss = F.cross_entropy(model(a), b)
        with detector.paused():
            graph = read_graph(loss, SAMPLES, GLOBAL_BATCH_SIZE)
        detector.check_losses([loss], graph)
    detector.close()
    assert notices() == {}


def test_batches_that_are_read_ahead_are_tracked(
    detector: BatchDependenceDetector, notices: Any
) -> None:
    batches = [(X.clone(), Y.clone()) for _ in range(3)]
    for batch in batches:
        detector.add_batch(batch, SAMPLES, GLOBAL_BATCH_SIZE)
    for x, y in batches:
        loss = CROSS_SAMPLE["contrastive"](model, x, y)
        with detector.paused():
            graph = read_graph(loss, SAMPLES, GLOBAL_BATCH_SIZE)
        detector.check_losses([loss], graph)
    assert set(notices()) == {"cross-sample"}
    detector.close()


def test_powers_of_2_and_round_numbers_are_observed(detector: BatchDependenceDetector) -> None:
    observed = []
    for number in range(1, 40):
        step(detector, PER_SAMPLE["mean"])
        if _get_current_dispatch_mode() is not None:
            observed.append(number)
    detector.close()
    assert observed == [1, 2, 4, 5, 8, 10, 16, 20, 25, 32]
    assert [n for n in range(99, 1025) if is_observed(n)] == [
        100, 128, 200, 250, 256, 500, 512, 1000, 1024
    ]  # fmt: skip
    assert _get_current_dispatch_mode() is None


def test_a_mode_of_the_cell_can_be_popped_while_observing(
    detector: BatchDependenceDetector,
) -> None:
    with FlopCounterMode(display=False) as flops:
        detector.add_batch((x := X.clone(), Y), SAMPLES, GLOBAL_BATCH_SIZE)
        model(x)
    counted = flops.get_total_flops()
    model(x)
    detector.close()
    assert flops.get_total_flops() == counted > 0


def test_observation_stops_when_all_batches_have_been_used(
    detector: BatchDependenceDetector,
) -> None:
    detector.add_batch((x := X.clone(), y := Y.clone()), SAMPLES, GLOBAL_BATCH_SIZE)
    detector.stop_if_done()
    assert _get_current_dispatch_mode() is not None
    loss = F.cross_entropy(model(x), y)
    with detector.paused():
        graph = read_graph(loss, SAMPLES, GLOBAL_BATCH_SIZE)
    detector.check_losses([loss], graph)
    detector.stop_if_done()
    assert _get_current_dispatch_mode() is None


def test_compiled_code_stays_compiled(detector: BatchDependenceDetector) -> None:
    fast = torch.compile(model, backend="aot_eager")
    detector.add_batch((x := X.clone(), Y), SAMPLES, GLOBAL_BATCH_SIZE)
    assert "Compiled" in fast(x).grad_fn.name()
    detector.close()
    assert "Compiled" in fast(x).grad_fn.name()


def test_modes_of_the_cell_keep_their_place_in_the_stack(detector: BatchDependenceDetector) -> None:
    with FlopCounterMode(display=False) as around:
        detector.add_batch((x := X.clone(), Y), SAMPLES, GLOBAL_BATCH_SIZE)
        with FlopCounterMode(display=False) as inside:
            model(x)
            with detector.paused():
                model(x)
            detector.close()
        model(x)
    assert _get_current_dispatch_mode() is None
    assert inside.get_total_flops() * 3 == around.get_total_flops() * 2 > 0
