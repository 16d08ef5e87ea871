"""Write-back of rebound names, views, and values that the notebook cannot rebuild."""

import gc
import importlib
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


def test_the_old_object_of_a_rebound_name_is_updated():
    namespace = notebook()
    model, before = namespace["model"], namespace["model"].weight.clone()
    nbmgpu.run(STEP.format("x") + "model = None", namespace, gpus=2)
    assert namespace["model"] is None
    assert not torch.equal(model.weight, before)


UNREADABLE = """
import torch.distributed as dist

class RankOnly:
    def __reduce__(self):
        return dist.get_backend, ()   # works only in ranks

strange = RankOnly()
number = 3
"""


def test_an_unreadable_value_does_not_affect_the_model():
    namespace = notebook()
    before = namespace["model"].weight.clone()
    run = nbmgpu.run(UNREADABLE + STEP.format("x"), namespace, gpus=2)
    assert not torch.equal(namespace["model"].weight, before)
    assert "cannot be made in the notebook" in run.view.notices["lost:strange"].text


def test_a_name_with_an_underscore_is_written_back():
    namespace = notebook()
    nbmgpu.run("_private = 5", namespace, gpus=1)
    assert namespace["_private"] == 5


def test_a_returned_view_keeps_its_base_alive():
    namespace = {"x": np.arange(1e6), "small": torch.arange(4.0)}
    memory = weakref.ref(namespace["x"])
    nbmgpu.run("x = x.reshape(1000, 1000); shown = x[2:4]", namespace, gpus=1, cpu=True)
    assert memory() is not None
    assert namespace["shown"][0, 0] == 2000
    namespace.clear()
    nbmgpu.last_run.results.clear()
    gc.collect()
    assert memory() is None


def test_sent_objects_are_not_kept_after_an_error():
    namespace = {"x": np.arange(1e6)}
    memory = weakref.ref(namespace["x"])
    with pytest.raises(ZeroDivisionError) as caught:
        nbmgpu.run("x.sum() / 0; 1 / 0", namespace, gpus=1, cpu=True)
    del namespace["x"]
    gc.collect()
    assert memory() is None, caught


def test_attributes_of_a_float_subclass_are_written_back():
    namespace = {"m": Meter(2.0)}
    nbmgpu.run("m.n = 5", namespace, gpus=1, cpu=True)
    assert namespace["m"].n == 5


class Meter(float):
    """A float with attributes."""


def test_patched_methods_of_libraries_are_reported(monkeypatch):
    definitions = {"__name__": "__main__", "PLAIN": torch.nn.Linear.forward}
    exec("def own_forward(self, x): return PLAIN(self, x) + 1000", definitions)
    monkeypatch.setattr(torch.nn.Linear, "forward", definitions["own_forward"])
    namespace = notebook()
    run = nbmgpu.run("y = model(x)", namespace, gpus=1, cpu=True)
    assert run.view.notices["patches"].text.startswith("`Linear.forward`:")
    again = "torch.nn.Linear.forward = lambda self, x: x\ny = model(x)"
    assert "patches" not in nbmgpu.run(again, namespace, gpus=1, cpu=True).view.notices
    monkeypatch.undo()


def test_patched_functions_of_modules_are_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    definitions = {"__name__": "__main__"}
    exec("def save(*args): pass", definitions)
    monkeypatch.setattr(torch, "save", definitions["save"])
    run = nbmgpu.run("torch.save(x, 'x.pt')", notebook(), gpus=1, cpu=True)
    assert "`torch.save`" in run.view.notices["patches"].text


def test_a_value_that_cannot_be_rebuilt_does_not_affect_others(tmp_path, monkeypatch):
    path = tmp_path / "phases.py"
    source = "import enum\nclass Phase(enum.Enum):\n    A = 1\n"
    path.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    phases = importlib.import_module("phases")
    path.write_text(source + "    BB = 2\n")  # only in ranks
    namespace = {"phases": phases, "log": [], "other": [], "w": torch.zeros(3), "after": []}
    cell = """
w += 1
other.append(1)
log.append({"phase": phases.Phase.BB, "step": 3})
after.append(phases.Phase.A)
n = 5
"""
    nbmgpu.run(cell, namespace, gpus=2, cpu=True)
    assert namespace["w"].tolist() == [1, 1, 1]
    assert (namespace["other"], namespace["n"]) == ([1], 5)
    assert namespace["after"] == [phases.Phase.A]
    (entry,) = namespace["log"]
    assert entry["step"] == 3
    assert "2 is not a valid Phase" in repr(entry["phase"])


def test_sent_objects_are_freed_without_garbage_collection(tmp_path, monkeypatch):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    namespace = {"__name__": "__main__", "torch": torch, "x": torch.ones(2**20), "n": 0}
    address = namespace["x"].data_ptr()
    gc.collect()
    gc.disable()
    try:
        nbmgpu.run("n = x.sum()", namespace, gpus=2, cpu=True)
        assert namespace["n"] == 2**20
        del namespace["x"]
        tensors = [tensor for tensor in gc.get_objects() if type(tensor) is torch.Tensor]
        large = [tensor for tensor in tensors if tensor.shape == (2**20,)]
        assert address not in [tensor.data_ptr() for tensor in large]
    finally:
        gc.enable()
