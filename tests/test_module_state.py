"""Attributes of the user's modules: ranks have the notebook's, and the notebook gets changes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import nbmgpu
from nbmgpu.environment import module_state
from nbmgpu.environment.module_constants import read_variables

SETTINGS = """
import os
import time
from types import SimpleNamespace

LR = 1.0
WARMUP = 2 * 5
NAMES = ["a"]
STARTED = time.time()
LIMITS = dict(low=1, high=float(os.environ.get("HIGH", 9)))
options = SimpleNamespace(depth=2)
_seen = 0
model = object()


class Config:
    width = 8
    started = time.time()

    def area(self):
        return self.width**2


def rate():
    return LR * WARMUP
"""

Import = Callable[[str, str], ModuleType]


@pytest.fixture
def make_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """Import a module with a given name and source, in a working directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[str] = []

    def make(name: str, source: str) -> ModuleType:
        (tmp_path / f"{name}.py").write_text(source)
        importlib.invalidate_caches()
        made.append(name)
        return importlib.import_module(name)

    yield make
    for name in made:
        sys.modules.pop(name, None)


def sent(name: str) -> dict[str, object]:
    return module_state.capture()[name]


def test_constants_of_a_source() -> None:
    found = read_variables(SETTINGS)
    assert {"LR", "WARMUP", "NAMES", "options", "Config", "Config.width"} <= found.constant
    assert not {"STARTED", "LIMITS", "Config.started", "model"} & found.constant
    assert {"STARTED", "LIMITS", "Config.started", "model"} <= found.assigned


def test_bindings_that_depend_on_the_process() -> None:
    found = read_variables(
        "if x:\n    A = 1\nfor B in range(3): pass\nC = 1\nC += f()\nD = C\nE = 2"
    )
    assert found.assigned == {"A", "B", "C", "D", "E"}
    assert found.constant == {"E"}


def test_what_is_sent(make_module: Import) -> None:
    settings = make_module("settings_sent", SETTINGS)
    settings.LR, settings.NEW = 0.5, "new"
    settings.options.depth = 3
    settings.Config.width = 16
    found = sent("settings_sent")
    assert {"LR": 0.5, "NEW": "new", "WARMUP": 10, "NAMES": ["a"]}.items() <= found.items()
    assert found["LIMITS"] == {"low": 1, "high": 9.0}
    assert found["options"] == module_state.Attributes("SimpleNamespace", {"depth": 3})
    assert found["Config"] == module_state.Attributes("Config", {"width": 16})
    assert not {"STARTED", "_seen", "model", "time", "rate"} & found.keys()


def test_flags_stay_with_what_they_are_about(make_module: Import) -> None:
    source = "LOADED = False\nsession = None\nEPOCHS = 3\ndef load():\n    global LOADED, session\n"
    module = make_module("client_loaded", source + "    LOADED, session = True, object()\n")
    module.load()
    assert sent("client_loaded") == {"EPOCHS": 3}


def test_an_edited_file_counts_where_the_notebook_has_changed_nothing(
    make_module: Import, tmp_path: Path
) -> None:
    module = make_module("settings_edited", SETTINGS)
    module_state.remember()
    (tmp_path / "settings_edited.py").write_text(SETTINGS.replace("LR = 1.0", "LR = 3.0"))
    module.WARMUP = 7
    assert sent("settings_edited") == {"WARMUP": 7}


def test_what_a_call_has_computed_is_sent_once_it_is_changed(make_module: Import) -> None:
    module = make_module("settings_computed", SETTINGS)
    module_state.remember()
    module.STARTED = module.Config.started = 5.0
    found = sent("settings_computed")
    assert found["STARTED"] == 5.0
    assert found["Config"] == module_state.Attributes("Config", {"width": 8, "started": 5.0})


def test_imported_constants(make_module: Import) -> None:
    origin = make_module("origin_of_constants", "import os\nLR = 1.0\nPID = os.getpid()\n")
    user = make_module("user_of_constants", "from origin_of_constants import LR, PID\n")
    origin.LR = 0.5
    assert user.LR == 1.0
    assert sent("user_of_constants") == {"LR": 1.0}


def test_objects_that_are_no_plain_values_are_left_out(make_module: Import) -> None:
    source = """
import enum
from dataclasses import dataclass

class Key:
    pass

class Mode(enum.Enum):
    FAST = 1

@dataclass(frozen=True)
class Frozen:
    x: int = 1

keys, table, own = {Key()}, {Key(): 1}, []
own.append(own)
mode, frozen = Mode.FAST, Frozen()
EPOCHS = 3
"""
    module = make_module("settings_odd", source)
    found = sent("settings_odd")
    assert not {"keys", "table", "own", "mode"} & found.keys()
    assert found["EPOCHS"] == 3
    module_state.assign(module, {"frozen": module_state.Attributes("Frozen", {"x": 2})})
    assert module.frozen.x == 1


def test_large_values_are_not_sent(make_module: Import) -> None:
    module = make_module("table_large", "TABLE = []\n")
    module.TABLE = list(range(module_state.MAX_ITEMS + 1))
    assert sent("table_large") == {}


def test_assigned_in_place(make_module: Import) -> None:
    settings = make_module("settings_in_place", SETTINGS)
    names, options = settings.NAMES, settings.options
    before = module_state.snapshot(settings)
    settings.NAMES.append("b")
    settings.options.depth = 9
    settings.LR = 0.25
    changed = module_state.changes(before, module_state.snapshot(settings))
    assert changed.keys() == {"NAMES", "options", "LR"}
    module_state.assign(settings, before)
    assert (settings.NAMES, settings.options.depth, settings.LR) == (["a"], 2, 1.0)
    module_state.assign(settings, changed)
    assert (names, options.depth, settings.LR) == (["a", "b"], 9, 0.25)


def test_ranks_have_the_values_of_the_notebook(make_module: Import) -> None:
    settings = make_module("settings_of_run", SETTINGS)
    settings.LR, settings.NEW, settings.Config.width = 0.5, "new", 16
    namespace = {"rate": settings.rate}
    nbmgpu.run(
        "import settings_of_run as s\n"
        "found = [rate(), s.NEW, s.Config().area(), s.options.depth]\n",
        namespace, gpus=2, cpu=True,
    )  # fmt: skip
    assert namespace["found"] == [5.0, "new", 256, 2]


def test_the_notebook_gets_what_the_cell_changes(make_module: Import) -> None:
    settings = make_module("settings_back", SETTINGS)
    names = settings.NAMES
    cell = "s.NAMES.append('b')\ns.LR /= 4\ns.options.depth += 1\ns.Config.width = 9\ns.best = 0.5"
    nbmgpu.run(cell, {"s": settings}, gpus=2, cpu=True)
    assert (names, settings.LR, settings.options.depth) == (["a", "b"], 0.25, 3)
    assert (settings.Config.width, settings.best) == (9, 0.5)
    nbmgpu.run("s.LR /= 2", {"s": settings}, gpus=2, cpu=True)
    assert settings.LR == 0.125


def test_what_ranks_leave_differently_is_named(make_module: Import) -> None:
    settings = make_module("settings_g", "SEEN = 0\nTOTAL = 0\n\nclass Config:\n    last = 0\n")
    cell = (
        "import torch.distributed as dist\n"
        "for x, in torch.utils.data.DataLoader(data, 4):\n"
        "    opt.zero_grad(); net(x).mean().backward(); opt.step()\n"
        "    s.TOTAL += 1\n"
        "s.SEEN = s.Config.last = 1 + dist.get_rank()"
    )
    net = torch.nn.Linear(2, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.ones(16, 2))
    namespace = {"s": settings, "torch": torch, "net": net, "opt": opt, "data": data}
    run = nbmgpu.run(cell, namespace, gpus=2, cpu=True)
    assert (settings.SEEN, settings.TOTAL, settings.Config.last) == (1, 4, 1)
    text = run.view.notices["rank-0-values"].text
    assert text.startswith("`settings_g.SEEN`, `settings_g.Config.last`: the value is rank 0's")
