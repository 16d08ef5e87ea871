"""Which statements and values an exported script takes from a notebook."""

from __future__ import annotations

from pathlib import Path

import pytest
from exporting import Notebook

from nbmgpu.errors import CellError
from nbmgpu.exports.definitions import Definitions, DefinitionSearch
from nbmgpu.exports.source_edits import SourceEdits, indented
from nbmgpu.exports.statements import read_statements

IMPORTS = """import math, os.path
import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset"""


def search(*cells: str, names: str, at_start: bool = True, changed: str = "") -> Definitions:
    """Return the definitions of ``names`` in a notebook; ``changed`` is code that left no cell."""
    notebook = Notebook()
    notebook.run(*cells)
    exec(changed, notebook.namespace)
    statements = read_statements(cells, lambda source: source)
    found = DefinitionSearch(statements, notebook.namespace, at_start)
    return found.find(names.split(), frozenset())


def texts(found: Definitions) -> list[str]:
    return [item.text for item in found.items]


def test_imports_have_only_the_names_that_are_needed() -> None:
    found = search(IMPORTS, "def area(r): return math.pi * r", names="area optim np")
    assert list(found.imports) == [
        "from torch import optim", "import math", "import numpy as np"
    ]  # fmt: skip
    assert texts(found) == ["def area(r): return math.pi * r"]


def test_what_was_assigned_to_attributes_of_modules_is_kept() -> None:
    cells = ["rate = 0.1", "math.RATE = rate", "math.RATE *= 2", "torch.manual_seed(0)"]
    found = search(IMPORTS, *cells, names="math torch", changed="del math.RATE")
    assert "import math" in found.imports
    assert texts(found) == cells[:3]


def test_the_last_definition_counts_with_what_it_builds_on() -> None:
    cells = ["a = 1", "b = a + 1", "b = 7", "b = b * 2", "c = 5", "a = 3"]
    found = search(*cells, names="b")
    assert texts(found) == ["b = 7", "b = b * 2"]


def test_a_class_brings_its_bases_and_what_its_methods_read() -> None:
    cells = [
        "def helper():\n    return SCALE",
        "# comments stay\n@dataclasses.dataclass\nclass Base:\n    x: int = 1",
        "class Derived(Base):\n    def value(self):\n        return helper()",
        "SCALE = 2",
        "unused = 3",
    ]
    found = search("import dataclasses", *cells, names="Derived")
    assert texts(found) == cells[:4]


def test_a_value_that_no_cell_explains_is_a_literal_or_a_file() -> None:
    cells = ["total = 1", "import torch", "weights = torch.ones(2)"]
    found = search(*cells, names="total weights", changed="total = 5\nweights.mul_(2)")
    assert texts(found) == ["total = 5", "weights = torch.ones(2)"]


@pytest.mark.parametrize(
    ("cell", "stored"),
    [
        ("x = torch.randn(3)", True),
        ("x = torch.arange(3)", False),
        ("x = np.array([1, 2])", False),
        ("x = np.random.rand(2)", True),
        ("x = [random.random()]", False),  # it fits on the line
        ("x = 'train.csv'", False),
        ("x = {'lr': 0.1, 'layers': [4, 2]}", False),
        ("x = [0.0]\nfor i in range(200):\n    x.append(i / 3)", True),
        ("x = nn.Linear(2, 2)", False),
        ("x = TensorDataset(torch.rand(20, 2))", True),
        ("x = DataLoader(TensorDataset(torch.rand(20, 2)), 4)", True),
        ("samples = [1, 2]\nx = DataLoader(samples, 1)", False),
        ("def draw():\n    return [torch.rand(9)]\nx = DataLoader(draw(), 1)", True),
    ],
)
def test_what_was_computed_is_stored(cell: str, stored: bool) -> None:
    found = search(IMPORTS, "import random", cell, names="x")
    assert [item.name for item in found.stored] == (["x"] if stored else [])


def test_what_should_be_stored_and_cannot_be_is_told() -> None:
    cells = [IMPORTS, "import threading", "x = [torch.rand(3), threading.Lock()]"]
    found = search(*cells, names="x")
    assert texts(found) == cells[2:]
    assert found.redrawn == ("x",)


def test_after_the_run_what_it_may_have_changed_is_source() -> None:
    cells = ["losses = []", "step = 0"]
    found = search(*cells, names="losses step", at_start=False, changed="losses += [1]; step = 9")
    assert texts(found) == cells


def test_changes_of_models_are_kept_and_training_is_not() -> None:
    cells = [
        IMPORTS,
        "model = nn.Linear(2, 2)",
        "model.extra = nn.Linear(1, 1)",
        "for p in model.parameters(): p.requires_grad_(False)",
        "model.train()",
        "model(torch.ones(1, 2)).sum()",
    ]
    assert texts(search(*cells, names="model")) == cells[1:4]


def test_an_object_that_is_made_with_a_model_is_made_again() -> None:
    cells = [
        IMPORTS,
        "model = nn.Linear(2, 2)",
        "class Trainer:\n    def __init__(self, model):\n        self.model = model",
        "trainer = Trainer(model)",
        "size = len(list(model.parameters())) * model.weight.numel()",
    ]
    assert texts(search(*cells, names="trainer size")) == [*cells[1:4], "size = 8"]


def test_a_cell_under_another_magic_is_read() -> None:
    body = "get_ipython().run_cell_magic('time', '', 'x = 1\\n')\n"
    statements = read_statements([body, "get_ipython().system('ls')", "1 +"], lambda text: text)
    assert [statement.text for statement in statements] == ["x = 1"]


def test_what_is_nowhere_is_an_error() -> None:
    with pytest.raises(CellError, match="`missing` is defined neither"):
        search("a = 1", names="missing")
    with pytest.raises(CellError, match="`lock` can neither be"):
        search("pass", names="lock", changed="import threading; lock = threading.Lock()")


def test_edits_leave_the_rest_as_it_is() -> None:
    code = "é = f(1,  2 ,)\nif é: g(é) ; h()"
    edits = SourceEdits(code)
    assign, choice = edits.tree.body
    edits.append_argument(assign.value, "x=3")  # type: ignore[attr-defined]
    edits.add_after(choice.body[0], "k()")  # type: ignore[attr-defined]
    edits.add_after(assign, "m()")
    edits.surround(assign.value, "[", "]")  # type: ignore[attr-defined]
    assert edits.result() == "é = [f(1,  2 , x=3)]\nm()\nif é: g(é); k() ; h()"


def test_lines_inside_of_strings_are_not_indented() -> None:
    code = 'x = """\n a\n"""\ny = 1\n\nz = 2'
    assert indented(code) == '    x = """\n a\n"""\n    y = 1\n\n    z = 2'


def test_names_of_the_script_do_not_hide_those_of_the_cell(tmp_path: Path) -> None:
    notebook = Notebook()
    notebook.run("rate = 0.5\ndef tick():\n    global count\n    count = count + 1", "count = 0")
    cell = "rate = rate / 2\ncount = 5\ntick()\nprint(count, rate)"
    text = notebook.export(cell, tmp_path / "train.py", strategy="none").path.read_text()
    assert text.index("def main") < text.index("rate = 0.5")
    assert "global count\n" in text[text.index("def main") :]
