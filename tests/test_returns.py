"""What comes back from cells that make things which only ranks can hold."""

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
