"""Sketches of gradients, the file of a rank's steps, and their comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nbmgpu.rank.progress import TrainingProgress
from nbmgpu.rank.reference.comparison import Difference, StepComparison, ValueDifference
from nbmgpu.rank.reference.sketches import COLUMNS, SUMS, relative_errors, sketches_of
from nbmgpu.rank.reference.step_file import StepReader, StepWriter
from nbmgpu.runs import reference

SHAPES = (7, 5), (61,), (3, 122), (), (200,)


class Parts:
    """A strategy by which each rank has some rows of the gradients, or rank 0 all."""

    def __init__(self, rank: int = 0, ranks: int = 1) -> None:
        self.rank, self.ranks = rank, ranks

    def gradient_part(self, parameter: Tensor) -> tuple[Tensor | None, int]:
        """Return the rows of this rank, as torch.chunk splits them."""
        grad = parameter.grad
        if grad is None or self.ranks == 1 or not grad.dim():
            return (grad if self.rank == 0 else None), 0
        chunks = grad.chunk(self.ranks)
        if self.rank >= len(chunks):
            return None, 0
        return chunks[self.rank], sum(chunk.numel() for chunk in chunks[: self.rank])


def optimizer_of(grads: list[Tensor | None]) -> torch.optim.Optimizer:
    """Return an optimizer whose parameters have these gradients."""
    parameters = [
        nn.Parameter(torch.zeros(()) if g is None else torch.zeros_like(g)) for g in grads
    ]
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad
    return torch.optim.SGD(parameters, lr=1.0)


def rows(grads: list[Tensor | None], ranks: int = 1) -> Tensor:
    """Return the sum of the sketches of all ranks."""
    strategies: list[Any] = [Parts(rank, ranks) for rank in range(ranks)]
    return sum(
        (sketches_of(optimizer_of(grads), strategy) for strategy in strategies),
        torch.zeros(len(grads), COLUMNS, dtype=torch.float64),
    )


def some_grads() -> list[Tensor | None]:
    torch.manual_seed(0)
    return [torch.randn(shape) for shape in SHAPES]


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_sketches_of_parts_add_up(ranks: int) -> None:
    errors = relative_errors(rows(some_grads()), rows(some_grads(), ranks))
    assert errors.max() < 1e-6


@pytest.mark.parametrize("index", range(len(SHAPES)))
def test_a_difference_is_as_large_as_in_the_gradients(index: int) -> None:
    here, there = some_grads(), some_grads()
    grad = there[index]
    assert grad is not None
    difference = torch.randn_like(grad)
    there[index] = grad + 0.01 * grad.norm() * difference / difference.norm()
    errors = relative_errors(rows(here), rows(there))
    assert errors[index] == pytest.approx(0.01, rel=0.5)
    assert errors[[i for i in range(len(SHAPES)) if i != index]].max() == 0


def test_columns_that_sum_to_zero_do_not_hide_a_difference() -> None:
    grad = torch.randn(10, SUMS + 3)
    grad -= grad.mean(0)  # as that of a softmax's weight
    assert relative_errors(rows([grad]), rows([grad.roll(1, 1)]))[0] > 0.5


def test_a_gradient_of_rounding_is_no_difference() -> None:
    large, noise = torch.randn(50), 1e-9 * torch.randn(50)
    errors = relative_errors(rows([large, noise]), rows([large, -noise]))
    assert errors[1] < 1e-6


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_infinite_gradients(value: float) -> None:
    finite, infinite = torch.ones(4), torch.full((4,), value)
    assert relative_errors(rows([infinite]), rows([infinite]))[0] == 0
    assert relative_errors(rows([infinite]), rows([finite]))[0] == math.inf
    assert relative_errors(rows([finite]), rows([infinite]))[0] == math.inf


def test_no_gradient_is_as_one_of_zeros() -> None:
    zeros, none, ones = rows([torch.zeros(())]), rows([None]), rows([torch.ones(())])
    assert relative_errors(none, none)[0] == relative_errors(zeros, none)[0] == 0
    assert relative_errors(none, zeros)[0] == 0
    assert relative_errors(ones, none)[0] >= 1
    assert relative_errors(none, ones)[0] >= 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64])
def test_dtypes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    grad = torch.randn(130, dtype=dtype)
    assert relative_errors(rows([grad]), rows([grad.clone()]))[0] == 0
    assert relative_errors(rows([grad]), rows([1.1 * grad]))[0] == pytest.approx(0.1, rel=0.2)


def test_sparse_gradients_are_as_dense_ones() -> None:
    table = nn.Embedding(20, 3, sparse=True)
    table(torch.tensor([3, 3, 7])).pow(2).sum().backward()
    sparse = table.weight.grad
    assert sparse is not None
    assert relative_errors(rows([sparse]), rows([sparse.to_dense()]))[0] < 1e-6


_writers: list[StepWriter] = []


@pytest.fixture(autouse=True)
def closed_files() -> Iterator[None]:
    """Close the files of all writers."""
    yield
    while _writers:
        _writers.pop().close()


class Steps:
    """What ranks have written, and a comparison with it."""

    def __init__(self, folder: Path, ranks: int = 2) -> None:
        reference.begin(folder)
        self.writers: list[StepWriter] = []
        for rank in range(ranks):
            strategy: Any = Parts(rank, ranks)
            self.writers.append(StepWriter(folder, strategy, TrainingProgress()))
        _writers.extend(self.writers)
        self.comparison = StepComparison(folder, ranks)

    def write(self, grads: list[Tensor | None]) -> None:
        for writer in self.writers:
            writer.observe(optimizer_of(grads), 0)

    def compare(self, grads: list[Tensor | None]) -> Difference | ValueDifference | None:
        return self.comparison.compare(0, rows(grads), {}, lambda: False)


def test_steps_of_ranks_are_compared(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    grads = some_grads()
    for _ in range(3):
        steps.write(grads)
        assert steps.compare(grads) is None
    for writer in steps.writers:
        writer.close()
    assert steps.comparison.compare_end({}, lambda: False) is None
    assert steps.comparison.has_all
    assert steps.comparison.steps == 3


def test_the_parameter_that_differs_most_is_named(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    here, there = some_grads(), some_grads()
    assert there[2] is not None
    assert there[4] is not None
    there[2], there[4] = 1.1 * there[2], 1.5 * there[4]
    steps.write(there)
    found = steps.compare(here)
    assert isinstance(found, Difference)
    assert (found.step, found.parameter) == (1, 4)
    assert found.error == pytest.approx(0.5, rel=0.2)


def test_rounding_may_grow_and_a_jump_is_a_difference(tmp_path: Path) -> None:
    steps, grads = Steps(tmp_path), [torch.ones(61)]
    for error in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 9e-2):
        steps.write([(1 + error) * torch.ones(61)])
        assert steps.compare(grads) is None
    other = tmp_path / "other"
    other.mkdir()
    steps = Steps(other)
    steps.write([torch.ones(61)])
    assert steps.compare(grads) is None
    steps.write([1.001 * torch.ones(61)])
    assert steps.compare(grads) == Difference(2, 0, pytest.approx(1e-3, rel=0.01))


def test_other_steps_are_a_difference(tmp_path: Path) -> None:
    steps, grads = Steps(tmp_path), some_grads()
    steps.write(grads[:2])
    assert steps.compare(grads) == Difference(1)


def test_the_last_step_may_be_another_one(tmp_path: Path) -> None:
    """A cell may end by a clock."""
    steps, grads = Steps(tmp_path), some_grads()
    steps.write(grads)
    assert steps.compare(grads) is None
    steps.write(grads)
    assert steps.comparison.compare_end({}, lambda: False) is None
    assert not steps.comparison.has_all
    other = tmp_path / "other"
    other.mkdir()
    steps = Steps(other)
    for writer in steps.writers:
        writer.close()
    assert steps.compare(grads) is None
    assert steps.comparison.is_over
    assert steps.comparison.steps == 0


def test_a_comparison_that_is_over_waits_for_no_rank(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    assert steps.comparison.compare(0, rows(some_grads()), {}, lambda: True) is None
    assert steps.comparison.steps == 0


def test_a_record_that_is_being_written_is_read_later(tmp_path: Path) -> None:
    steps = Steps(tmp_path, ranks=1)
    steps.write(some_grads())
    path = reference.step_file(tmp_path, 0)
    data = path.read_bytes()
    path.write_bytes(data[:-8])
    reader = StepReader(path)
    assert reader.next_step() is None
    path.write_bytes(data)
    found = reader.next_step()
    assert found is not None
    assert found.parameters == len(SHAPES)
    assert reader.next_step() is None


def test_without_a_step_there_is_nothing_to_compare(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    assert reference.is_verified_now(tmp_path)
    steps.writers[0].close()
    assert not reference.is_verified_now(tmp_path)


def test_what_fails_here_does_not_fail_the_training(tmp_path: Path) -> None:
    steps = Steps(tmp_path, ranks=1)
    steps.writers[0]._file.close()
    steps.writers[0]._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    steps.write(some_grads())
    assert not reference.is_verified_now(tmp_path)


def test_nothing_is_recorded_for_a_reference_that_has_ended(tmp_path: Path) -> None:
    steps = Steps(tmp_path, ranks=1)
    reference.end(tmp_path)
    steps.write(some_grads())
    assert not reference.step_file(tmp_path, 0).read_bytes()


def test_rounding_that_has_grown_too_large_is_told_from_a_jump(tmp_path: Path) -> None:
    steps, grads = Steps(tmp_path), [torch.ones(61)]
    for error in (1e-5, 1e-3, 0.09):
        steps.write([(1 + error) * torch.ones(61)])
        assert steps.compare(grads) is None
    steps.write([2 * torch.ones(61)])
    found = steps.compare(grads)
    assert isinstance(found, Difference)
    assert found.has_grown


def test_optimizers_may_step_in_another_order(tmp_path: Path) -> None:
    steps = Steps(tmp_path, ranks=1)
    first, second = some_grads()[:2], some_grads()[2:]
    for _ in range(2):
        steps.writers[0].observe(optimizer_of(second), 1)
        steps.writers[0].observe(optimizer_of(first), 0)
        assert steps.comparison.compare(0, rows(first), {}, lambda: False) is None
        assert steps.comparison.compare(1, rows(second), {}, lambda: False) is None
    steps.writers[0].close()
    assert steps.comparison.compare(0, rows(first), {}, lambda: False) is None
    assert steps.comparison.is_over
