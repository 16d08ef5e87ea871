"""What comes back from cells that make things which only ranks can hold."""

import gc
import weakref

import numpy as np
import pytest
import torch

import nbmgpu


@pytest.fixture(autouse=True)
def _runs(tmp_path, monkeypatch):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))


def notebook():
    model = torch.nn.Linear(4, 1)
    return {
        "__name__": "__main__",
        "torch": torch,
        "model": model,
        "opt": torch.optim.SGD(model.parameters(), 0.1),
        "x": torch.randn(8, 4),
    }


STEP = """
model({}).square().mean().backward()
opt.step()
"""


def test_a_hand_written_ddp_cell_trains_the_notebooks_model():
    namespace = notebook()
    model, before = namespace["model"], namespace["model"].weight.clone()
    cell = "model = torch.nn.parallel.DistributedDataParallel(model)" + STEP.format("x")
    nbmgpu.run(cell, namespace, gpus=2, strategy="none")
    assert namespace["model"] is model
    assert not torch.equal(model.weight, before)


def test_a_rebound_name_does_not_lose_the_old_object():
    namespace = notebook()
    model, before = namespace["model"], namespace["model"].weight.clone()
    nbmgpu.run(STEP.format("x") + "model = None", namespace, gpus=2)
    assert namespace["model"] is None
    assert not torch.equal(model.weight, before)


UNREADABLE = """
import torch.distributed as dist

class OfRanks:
    def __reduce__(self):
        return dist.get_backend, ()   # works in a rank, not in a notebook

strange = OfRanks()
number = 3
"""


def test_a_value_that_only_ranks_can_read_does_not_take_the_model_with_it():
    namespace = notebook()
    before = namespace["model"].weight.clone()
    run = nbmgpu.run(UNREADABLE + STEP.format("x"), namespace, gpus=2)
    assert not torch.equal(namespace["model"].weight, before)
    assert "cannot be read in the notebook" in run.view.notices["lost:strange"].text


def test_a_name_with_an_underscore_comes_back():
    namespace = notebook()
    nbmgpu.run("_private = 5", namespace, gpus=1)
    assert namespace["_private"] == 5


def test_what_comes_back_as_a_view_keeps_the_memory_that_it_shows():
    namespace = {"x": np.arange(1e6), "small": torch.arange(4.0)}
    memory = weakref.ref(namespace["x"])
    nbmgpu.run("x = x.reshape(1000, 1000); shown = x[2:4]", namespace, gpus=1, cpu=True)
    assert memory() is not None
    assert namespace["shown"][0, 0] == 2000
    namespace.clear()
    nbmgpu.last_run.results.clear()
    gc.collect()
    assert memory() is None


def test_nothing_that_was_sent_is_kept_after_an_error():
    namespace = {"x": np.arange(1e6)}
    memory = weakref.ref(namespace["x"])
    with pytest.raises(ZeroDivisionError) as caught:
        nbmgpu.run("x.sum() / 0; 1 / 0", namespace, gpus=1, cpu=True)
    del namespace["x"]
    gc.collect()
    assert memory() is None, caught


def test_attributes_of_a_value_that_is_a_kind_of_number_come_back():
    namespace = {"m": Meter(2.0)}
    nbmgpu.run("m.n = 5", namespace, gpus=1, cpu=True)
    assert namespace["m"].n == 5


class Meter(float):
    """A number with attributes."""
