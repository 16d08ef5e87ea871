"""Serialization costs about as much as copying the memory, and objects cost little more."""

import time

import pytest

from nbmgpu.serialization import load_bundle, restore_result, save_result
from nbmgpu.serialization.storage import allocate_storage


class Clock:
    """Measures CPU time, which does not depend on other processes."""

    def __enter__(self):
        self.start = time.process_time()
        return self

    def __exit__(self, *error):
        self.seconds = time.process_time() - self.start


@pytest.mark.slow
def test_sending_a_gibibyte_costs_about_a_copy(notebook):
    notebook.cell("import torch\nX = torch.ones(2**28)")
    import torch

    with Clock() as copy:
        notebook["X"].clone()
    with Clock() as serializing:
        bundle = notebook.serialize("X")
    with Clock() as writing:
        storage = notebook.write(bundle)
    namespace = {"__name__": "__main__"}
    with Clock() as loading:
        received = load_bundle(storage.path, namespace, "cpu")
    result = allocate_storage(notebook.folder, "result", 0)
    notebook.storages.append(result)
    with Clock() as comparing:
        save_result(result.path, {"X": namespace["X"]}, {}, received, namespace)
    namespace["X"] += 1
    with Clock() as saving:
        save_result(result.path, {"X": namespace["X"]}, {}, received, namespace)
    with Clock() as restoring:
        restore_result(result.path, bundle)
    assert torch.equal(notebook["X"], namespace["X"])
    for name, clock in list(locals().items()):
        if isinstance(clock, Clock):
            print(f"{name:>11} {clock.seconds:.3f} s")
    assert serializing.seconds < 0.1
    assert writing.seconds < 4 * copy.seconds + 0.2
    assert loading.seconds < 0.05
    assert comparing.seconds < 4 * copy.seconds + 0.2


@pytest.mark.parametrize(
    "before",
    [
        "class P:\n    def __init__(self, i): self.i, self.d = i, {'x': i}\n"
        "v = [P(i) for i in range(100_000)]",
        "v = [f'word {i}' for i in range(200_000)]",
        "import torch\nv = [torch.ones(3) for _ in range(5_000)]",
        "import numpy as np\nv = [np.ones(3) for _ in range(20_000)]",
        "v = {i: [i, (i, str(i))] for i in range(100_000)}",
    ],
    ids=["objects", "strings", "tensors", "arrays", "dict"],
)
def test_many_small_objects_are_fast(notebook, before):
    import cloudpickle

    notebook.cell(before)
    with Clock() as plain:
        cloudpickle.loads(cloudpickle.dumps(notebook["v"]))
    with Clock() as serializing:
        bundle = notebook.serialize("v")
        storage = notebook.write(bundle)
    namespace = {"__name__": "__main__"}
    with Clock() as loading:
        received = load_bundle(storage.path, namespace, "cpu")
    result = allocate_storage(notebook.folder, "result", 0)
    notebook.storages.append(result)
    with Clock() as saving:
        save_result(result.path, {"v": namespace["v"]}, {}, received, namespace)
    with Clock() as restoring:
        restore_result(result.path, bundle)
    for name, clock in list(locals().items()):
        if isinstance(clock, Clock):
            print(f"{name:>11} {clock.seconds:.3f} s")
    allowed = 5 * plain.seconds + 3
    assert serializing.seconds < allowed
    assert loading.seconds < allowed
    assert saving.seconds < 2 * allowed
    assert restoring.seconds < 2 * allowed
