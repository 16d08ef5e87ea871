"""What ``nbmgpu.log`` takes in a cell, and what it refuses."""

import pytest
import torch

import nbmgpu
from nbmgpu.rank.reporting.recorder import check_metrics


def logged(line):
    """What becomes of a cell that logs once."""
    return nbmgpu.run(f"import nbmgpu, numpy, torch\n{line}", {}, gpus=2, cpu=True)


def test_numbers_and_tensors_with_one_element_are_points():
    line = (
        "nbmgpu.log(a=1, b=0.5, c=True, d=torch.ones(1, 1), e=numpy.float32(2), f=numpy.int64(3))"
    )
    metrics = logged(line).metrics
    assert dict(metrics.iloc[0]) == {"a": 1, "b": 0.5, "c": 1, "d": 1, "e": 2, "f": 3}
    assert set(metrics.dtypes) == {metrics["a"].dtype} == {torch.ones(1).double().numpy().dtype}


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("torch.ones(2, 3)", r"tensor of shape \(2, 3\).\nTry: nbmgpu.log\(acc=acc.mean\(\)\)"),
        ("torch.ones(0)", r"tensor of shape \(0,\)"),
        ("numpy.ones(3)", "ndarray"),
        ("'high'", "str 'high'"),
        ("None", "NoneType None"),
        ("[0.5]", r"list \[0.5\]"),
        ("list(range(100_000))", r"list \[0, 1, 2, 3, 4, 5, \.\.\.\]"),
        ("10 ** 400", "int 1000"),
    ],
)
def test_the_error_for_a_value_that_is_not_one_number_names_its_line(value, what):
    with pytest.raises(
        TypeError, match=rf"log\(acc=...\): a metric is one number, but this is (a )?{what}"
    ):
        logged(f"nbmgpu.log(fine=1.0, acc={value})")
    assert nbmgpu.last_run.metrics.empty  # half a call is not recorded


def test_no_tensor_is_read_to_know_that_it_is_one_number():
    """On a GPU that would be a wait at every step; one without data cannot be read at all."""
    unreadable = torch.ones((), device="meta")
    assert check_metrics({"a": unreadable})["a"] is unreadable


def test_outside_a_run_nothing_happens():
    nbmgpu.log(acc=[])
