"""What is serialized, its size, and the messages about values that cannot be serialized."""

import pytest

from nbmgpu.errors import SerializationError
from nbmgpu.serialization import read_copies, write_copies


class TestSizes:
    def test_only_the_slice_of_a_storage_is_sent(self, notebook):
        notebook.cell(
            "import torch, numpy as np\nX = torch.zeros(25_000_000); x0 = X[:10]; "
            "ends = [X[:3], X[-3:]]\n"
            "A = np.zeros(12_500_000); a0 = A[5:10]; mid = torch.from_numpy(A)[100:110]"
        )
        assert notebook.serialize("x0", "a0", "ends", "mid").nbytes < 2_500

    def test_sizes_sum_to_the_total(self, notebook):
        notebook.cell("import torch\nX = torch.zeros(1000); v = X[5:]; m = torch.nn.Linear(50, 50)")
        bundle = notebook.serialize()
        header = bundle.nbytes - sum(bundle.sizes.values())
        assert 0 < header < 100  # the header belongs to no name
        assert list(bundle.sizes) == ["torch", "X", "v", "m"]

    def test_shared_memory_counts_once(self, notebook):
        notebook.cell(
            "import torch, numpy as np\nA = np.zeros(100_000); t = torch.from_numpy(A); "
            "v = A[::2]; "
            "e = t.expand(50, -1); w = A[10:]; half = A[:500]; m = {'a': A}"
        )
        bundle = notebook.serialize("half", "A", "t", "v", "e", "w", "m")
        assert 800_000 < bundle.nbytes < 802_000
        assert 4000 < bundle.sizes["half"] < 4200
        assert 796_000 < bundle.sizes["A"] < 796_200
        assert all(bundle.sizes[name] < 150 for name in ("t", "v", "e", "w", "m"))

    def test_rows_of_a_tensor_are_one_block(self, notebook):
        notebook.cell("import torch\nrows = list(torch.zeros(5000, 7))")
        bundle = notebook.serialize("rows")
        assert len(bundle.table.blocks) == 1

    def test_serialize_copies_no_data(self, notebook):
        import tracemalloc

        notebook.cell("import torch\nX = torch.zeros(10_000_000)")
        tracemalloc.start()
        notebook.serialize()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1_000_000


UNPICKLABLE = [
    # before, name, path, type, part of the reason, part of the remedy
    ("g = (i for i in [])", "g", "g", "generator", "cannot pickle 'generator'", "list"),
    (
        "import threading\nlock = threading.Lock()",
        "lock", "lock", "_thread.lock", "cannot pickle", "inside the cell",
    ),
    (
        "import os\nf = open(os.devnull)",
        "f", "f", "_io.TextIOWrapper", "open file", "open the file",
    ),
    ("import os\nf = open(os.devnull, 'rb')", "f", "f", "_io.BufferedReader", "", "open the file"),
    ("import socket\ns = socket.socket()", "s", "s", "socket.socket", "socket", "connect inside"),
    (
        "import threading\nt = threading.Thread(); x = {'a': [t]}",
        "x", "x['a'][0]", "threading.Thread", "", "start it inside",
    ),
    ("import queue\nq = queue.Queue()", "q", "q", "queue.Queue", "", "share no queue"),
    (
        "import sqlite3\nc = sqlite3.connect(':memory:')",
        "c", "c", "sqlite3.Connection", "", "connect",
    ),
    (
        "import torch\nfrom torch.utils.data import DataLoader\nit = iter(DataLoader([1, 2]))",
        "it", "it", "_SingleProcessDataLoaderIter", "cannot be pickled", "iter() inside",
    ),
    (
        "import threading\ndef make():\n    guard = threading.Lock()\n"
        "    return lambda: guard\nfn = make()",
        "fn", "fn:guard", "_thread.lock", "cannot pickle", "share a lock",
    ),
    (
        "import threading\nlock = threading.Lock()\ndef fn(): return lock\n"
        "def outer(): return fn()",
        "outer", "outer:fn:lock", "_thread.lock", "cannot pickle", "share a lock",
    ),
    (
        "import threading, functools\np = functools.partial(print, file=threading.Lock())",
        "p", "p.keywords['file']", "_thread.lock", "cannot pickle", "share a lock",
    ),
    (
        "import torch, threading\nmodel = torch.nn.Sequential(torch.nn.Linear(1, 1))\n"
        "model[0].guard = threading.Lock()",
        "model", "model.0.guard", "_thread.lock", "cannot pickle", "share a lock",
    ),
    (
        "import threading\nclass A:\n    __slots__ = ('x',)\na = A(); "
        "a.x = {1: (threading.Lock(),)}",
        "a", "a.x[1][0]", "_thread.lock", "cannot pickle", "share a lock",
    ),
    (
        "import collections\nd = collections.deque([1, (i for i in [])])",
        "d", "d[1]", "generator", "cannot pickle", "list",
    ),
    (
        "import threading\nclass A:\n    lock = threading.Lock()\na = A()",
        "a", "a.lock", "_thread.lock", "cannot pickle", "share a lock",
    ),
    (
        "class Bad:\n    def __getstate__(self): raise RuntimeError('not today')\nbad = Bad()",
        "bad", "bad", "__main__.Bad", "not today", "__getstate__",
    ),
    (
        "a = []\nfor _ in range(100_000): a = [a]",
        "a", "", "list", "recursion", "nest it less",
    ),
    ("import sys\nframe = sys._getframe()", "frame", "frame", "frame", "", "inside the cell"),
    (
        "import torch\nx = torch.zeros(9); x.untyped_storage().resize_(0)",
        "x", "x", "torch.Tensor", "freed", "cell",
    ),
]  # fmt: skip


class TestUnpicklable:
    @pytest.mark.filterwarnings("ignore::ResourceWarning")
    @pytest.mark.parametrize(("before", "name", "path", "kind", "reason", "remedy"), UNPICKLABLE)
    def test_the_error_has_path_type_reason_and_remedy(
        self, notebook, before, name, path, kind, reason, remedy
    ):
        notebook.cell(before)
        with pytest.raises(SerializationError) as caught:
            notebook.serialize(name)
        what, details, instead = str(caught.value).splitlines()
        assert what.startswith(f"The cell reads `{name}`")
        assert f"`{path}`" in what or not path
        assert kind in details.partition("Reason:")[0]
        assert reason in details.partition("Reason:")[2]
        assert instead.startswith("Try: ")
        assert remedy in instead

    def test_hints_do_not_apply_to_classes_with_similar_names(self, notebook):
        notebook.cell(
            "class MyIterable:\n    def __reduce__(self): raise TypeError('odd')\n"
            "block = MyIterable()"
        )
        with pytest.raises(SerializationError, match="__getstate__"):
            notebook.serialize("block")

    def test_script_modules_are_named(self, notebook):
        notebook.cell(
            "import torch, warnings\nwith warnings.catch_warnings():\n"
            "    warnings.simplefilter('ignore')\n"
            "    s = torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2))"
        )
        with pytest.raises(SerializationError, match=r"`s`.*\n.*ScriptModule|TopLevelTracedModule"):
            notebook.serialize("s")

    @pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # by torch's compiler
    def test_compiled_functions_say_where_to_compile(self, notebook):
        notebook.cell("import torch\n@torch.compile\ndef f(x):\n    return x + 1")
        with pytest.raises(SerializationError, match=r"torch\.compile\(function\) in the cell"):
            notebook.serialize("f")

    def test_others_are_named_at_once(self, notebook):
        notebook.cell("import threading; a, b, c = threading.Lock(), 1, (i for i in [1])")
        with pytest.raises(SerializationError, match=r"reads `a`, .*; nor can `c`"):
            notebook.serialize("a", "b", "c")

    def test_iterators_of_loaders_have_a_reason(self, notebook):
        notebook.cell("from torch.utils.data import DataLoader; it = iter(DataLoader([1, 2]))")
        with pytest.raises(SerializationError, match="Reason: _SingleProcessDataLoaderIter cannot"):
            notebook.serialize("it")

    def test_the_unpicklable_part_is_found_quickly(self, notebook):
        import time

        notebook.cell(
            "import threading\nbig = {i: [str(i)] * 3 for i in range(50_000)}; "
            "big['lock'] = threading.Lock()\n"
            "holder = [[[big]]]"
        )
        start = time.process_time()
        with pytest.raises(SerializationError, match=r"holder\[0\]\[0\]\[0\]\['lock'\]"):
            notebook.serialize("holder")
        assert time.process_time() - start < 10


class TestCopies:
    def test_copies_of_other_ranks_can_be_read(self, tmp_path):
        import numpy as np
        import torch

        namespace = {"y": 5}
        exec("def f(): return y", namespace)
        values = {"a": 1, "t": torch.ones(3), "n": np.arange(3), "f": namespace["f"]}
        path = tmp_path / "copies"
        write_copies(str(path), values | {"g": (i for i in [])}, namespace)
        read = read_copies(str(path), {"y": 6})
        path.unlink()
        assert set(read) == {"a", "t", "n", "f"}
        assert read["t"].sum() == 3
        assert read["n"].sum() == 3
        assert read["f"]() == 6
        read["t"].resize_(10)

    def test_reading_copies_does_not_change_the_notebook(self, notebook):
        notebook.cell("class A:\n    seen = []\n    def f(self): return y\ny = 1; a = A()")
        path = notebook.folder / "copies"
        cell = f"""
from nbmgpu.serialization import write_copies
y = 2; A.seen.append(1)
write_copies({str(path)!r}, {{"value": a}}, globals())
"""
        notebook.start(notebook.write(notebook.serialize()), cell).wait()
        seen, f = notebook["A"].seen, notebook["A"].f
        value = read_copies(str(path), notebook.namespace)["value"]
        assert type(value) is notebook["A"]
        assert notebook["A"].seen is seen
        assert seen == []
        assert notebook["A"].f is f
        assert value.f() == notebook["y"] == 1
