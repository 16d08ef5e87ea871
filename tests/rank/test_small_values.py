"""Small values that a cell keeps, and which of them ranks have of their own."""

from __future__ import annotations

import types
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nbmgpu.rank.reference.value_comparison import Batches, OtherValue, ValueComparison
from nbmgpu.rank.reference.values import CellValues, Value, Values, small_values


def test_numbers_strings_and_lengths_are_found() -> None:
    names: dict[str, Any] = {
        "n": 3,
        "rate": 0.5,
        "words": "loss 0.251 of 1e-3 at 12:03:04 n=4",
        "sizes": [1, 2],
        "last": deque([(4, 8)]),
        "seen": {"n": 4, 2: {"deep": 1}, (1, 2): 0},
        "labels": {1, 2},
        "shape": (4, 8),
        "flag": True,
        "_hidden": 1,
        "long": "x" * 1000,
    }
    assert small_values(names) == {
        "n": 3, "rate": 0.5, "words": "loss  of  at  n=4",
        "len(sizes)": 2, "sizes[-1]": 2,
        "len(last)": 1, "last[-1][0]": 4, "last[-1][1]": 8,
        "len(seen)": 3, "seen['n']": 4, "len(seen[2])": 1, "seen[2]['deep']": 1,
        "len(labels)": 2,
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_of_arrays_and_tensors_the_sum_is_compared_with_sums_of_their_shape() -> None:
    names = {
        "confusion": np.eye(3), "seen": torch.tensor([True, True]), "per_class": torch.ones(4),
        "accuracies": [torch.tensor(0.5)], "correct": np.array(3),
        "loss": torch.ones((), requires_grad=True), "outputs": torch.ones(4, requires_grad=True),
        "features": torch.ones(100, 100),
        "is_better": torch.tensor(True), "spectrum": torch.ones(2, dtype=torch.complex64),
        "names": np.array(["a", "b"]), "sparse": torch.eye(2).to_sparse(), "none": np.zeros(0),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "float8": torch.ones(2).to(torch.float8_e5m2), "uint16": torch.ones(2, dtype=torch.uint16),
    }  # fmt: skip
    assert small_values(names) == {
        "confusion.sum()  # of (3, 3)": 3.0, "confusion.max()  # of (3, 3)": 1.0,
        "seen.sum()  # of (2,)": 2, "seen.max()  # of (2,)": True,
        "per_class.sum()  # of (4,)": 4.0, "per_class.max()  # of (4,)": 1.0,
        "len(accuracies)": 1, "accuracies[-1].item()": 0.5,
        "correct.item()": 3, "loss.item()": 1.0,
    }  # fmt: skip


def test_of_a_long_dict_only_the_length_is_looked_at() -> None:
    assert small_values({"seen": dict.fromkeys(range(1000), 1)}) == {"len(seen)": 1000}


def test_attributes_are_those_of_classes_of_the_notebook() -> None:
    module = types.ModuleType("__main__")
    code = """
from torch import nn
import torch
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.count, self.layer = 2, nn.BatchNorm1d(3)
        self.register_buffer("steps", torch.tensor(5))
class Meter:
    def __init__(self): self.n, self._n, self.own = 7, 8, self
"""
    exec(code, vars(module))
    model = nn.Sequential(module.Net(), nn.BatchNorm1d(3))
    model.history = [0.5]
    assert small_values({"model": model, "meter": module.Meter()}) == {
        "len(model.history)": 1, "model.history[-1]": 0.5,
        "model.0.count": 2, "model.0.steps.item()": 5,
        "meter.n": 7,
    }  # fmt: skip


def test_variables_of_a_closure_and_attributes_of_a_function_are_found() -> None:
    module = types.ModuleType("__main__")
    code = """
def make():
    total = 0
    def add(n):
        nonlocal total
        total += n
    return add
add = make()
add(3)
add.calls = 1
class Meter:
    def __init__(self): self.sums = {"n": 4}
meters = [Meter()]
update = meters[0].__init__
"""
    exec(code, vars(module))
    assert small_values({"add": module.add, "meters": module.meters}) == {
        "add.calls": 1, "add().total": 3,
        "len(meters)": 1, "len(meters[-1].sums)": 1, "meters[-1].sums['n']": 4,
    }  # fmt: skip


def test_variables_of_functions_are_found_and_not_kept() -> None:
    module = types.ModuleType("__main__")
    vars(module).update(keep=CellValues(), total=1)
    code = """
def train(tensor):
    count = 3
    values = keep.at_step()
    count = 4
    return values, keep.at_step()
"""
    exec(code + "first, second = train(0)\nlast = keep.at_end()", vars(module))
    assert module.first["train().count"] == 3
    assert module.second["train().count"] == 4
    assert module.first["total"] == module.last["total"] == 1
    assert "train().count" not in module.last


def test_namespaces_that_the_cell_holds_do_not_change() -> None:
    module = types.ModuleType("__main__")
    vars(module).update(keep=CellValues())
    code = """
def train(rate):
    settings = locals()
    n = 1
    keep.at_step()
    return settings
kept = train(0.5)
own = {"n": 2}
exec("m = 3; keep.at_step()", globals(), own)
class Body:
    size = 4
    keep.at_step()
"""
    exec(code, vars(module))
    assert module.kept == {"rate": 0.5}
    assert module.own == {"n": 2, "m": 3}
    assert module.Body.size == 4


def compare(
    path: str, here: Value, there: list[Value], reads_clock: bool = False, steps: int = 1
) -> OtherValue | None:
    """Return what is found in the last of some steps; beside a clock, integers grow."""
    comparison = ValueComparison(lambda: reads_clock)
    batches: Batches = frozenset({(8, (4, 4))})
    found = None
    for step in range(1, steps + 1):
        assert found is None
        mine, *theirs = (
            value * step if isinstance(value, int) and reads_clock else value
            for value in (here, *there)
        )
        values: list[Values] = [{path: value} for value in theirs]
        found = comparison.compare({path: mine}, values, batches)
    return found


AVERAGE: tuple[str, Value, list[Value]] = ("accuracy", 0.42, [0.46, 0.38])

COUNTS: list[tuple[str, Value, list[Value]]] = [
    ("n", 16, [8, 8]),
    ("n", 9, [5, 4]),
    ("seen['n']", 8, [4, 4]),
    ("words", "n=8 of 10", ["n=4 of 10", "n=4 of 10"]),
]


@pytest.mark.parametrize(("path", "here", "there"), [*COUNTS, ("mean", 2.0, [1.0, 1.0]), AVERAGE])
def test_a_value_that_ranks_have_and_one_device_has_not(
    path: str, here: Value, there: list[Value]
) -> None:
    assert compare(path, here, there) == OtherValue(path, here, there[0])


@pytest.mark.parametrize(("path", "here", "there"), COUNTS)
def test_beside_a_clock_a_count_must_differ_in_several_steps(
    path: str, here: Value, there: list[Value]
) -> None:
    assert compare(path, here, there, reads_clock=True, steps=3) is None
    found = compare(path, here, there, reads_clock=True, steps=4)
    times = 4 if isinstance(here, int) else 1
    assert found == OtherValue(path, here * times, there[0] * times)


@pytest.mark.parametrize(
    ("path", "here", "there"),
    [
        ("n", 8, [4, 4]),  # the size of a batch
        ("train().n", 8, [4, 4]),
        ("n", 8, [8, 8]),
        ("zero", 0, [0, 0]),
        ("position", 7, [3, 3]),
        ("pid", 100, [200, 300]),
        ("now", 2.5, [1.6, 1.7]),
        ("ranks", 1, [2, 2]),
        ("loss", 0.5, [0.5000001, 0.5000001]),
        ("loss", float("nan"), [float("inf"), float("inf")]),
        ("words", "rank 0", ["rank 0", "rank 1"]),
        ("words", "n=8", ["m=4", "m=4"]),
        ("words", "n=8 after 2", ["n=4 after 2", "n=4 after 3"]),
        ("kind", 1, ["a", "b"]),
        ("kind", "a", [1, 1]),
    ],
)
def test_a_value_that_may_be_a_ranks_own(path: str, here: Value, there: list[Value]) -> None:
    assert compare(path, here, there) is None


@pytest.mark.parametrize("reads_clock", [False, True])
def test_a_sum_must_differ_in_several_steps(reads_clock: bool) -> None:
    """The last batches may be as long as each other by chance, and so be of the same shape."""
    comparison = ValueComparison(lambda: reads_clock)
    path = "confusion.sum()  # of (3, 3)"
    for step in range(1, 5):
        there: list[Values] = [{path: 4.0 * step}, {path: 4.0 * step}]
        found = comparison.compare({path: 8.0 * step}, there, frozenset())
        assert found == (OtherValue("confusion.sum()", 32.0, 16.0) if step == 4 else None)


def test_a_tensor_of_a_constant_that_no_rank_has_is_a_count() -> None:
    assert compare("sizes[-1].item()", 64, [32, 32], steps=3) is None
    found = compare("sizes[-1].item()", 64, [32, 32], steps=4)
    assert found == OtherValue("sizes[-1].item()", 64, 32)
    assert compare("label.item()", 1, [1, 0], steps=9) is None
    assert compare("rank.item()", 32, [27, 26], steps=4) is not None
    assert compare("label.item()", 3, [2, 3], steps=9) is None


def test_a_number_of_a_tensor_is_compared_unless_some_rank_has_it() -> None:
    assert compare("kept[-1].item()", 10.2, [7.2, 7.3]) == OtherValue("kept[-1].item()", 10.2, 7.2)
    assert compare("out[-1].item()", 10.2, [7.2, 10.2], steps=9) is None
    assert compare("took", 10.2, [7.2, 7.3], steps=9) is None


def test_a_small_difference_counts_where_ranks_differ_in_several_steps() -> None:
    assert compare("best", 0.815, [0.810, 0.820], steps=3) is None
    assert compare("best", 0.815, [0.810, 0.820], steps=4) == OtherValue("best", 0.815, 0.810)
    assert compare("best", 0.815, [0.810, 0.810], steps=9) is None


def test_sums_of_other_shapes_are_not_compared() -> None:
    here, there = {"x.sum()  # of (8, 4)": 6.5}, {"x.sum()  # of (4, 4)": 2.5}
    comparison = ValueComparison(lambda: False)
    for _ in range(9):
        assert comparison.compare({**here}, [{**there}, {**there}], frozenset()) is None


def test_beside_a_clock_floats_may_be_times() -> None:
    assert compare("took", 2.0, [1.0, 1.0], reads_clock=True, steps=9) is None
    assert compare("took", 2.0, [1.0, 1.1], reads_clock=True, steps=9) is None
    assert compare(*AVERAGE, reads_clock=True, steps=4) is not None


def test_seconds_that_add_up_now_and_then_are_no_count() -> None:
    comparison = ValueComparison(lambda: True)
    for here, there in [(2, 1), (2, 1), (3, 1), (4, 2), (4, 2), (4, 2), (5, 2)]:
        assert comparison.compare({"s": here}, [{"s": there}, {"s": there}], frozenset()) is None


def test_a_value_that_some_ranks_have_not() -> None:
    comparison = ValueComparison(lambda: False)
    assert comparison.compare({"n": 6}, [{"n": 3}, {}], frozenset()) is None
