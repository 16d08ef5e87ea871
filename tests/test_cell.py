"""The names that a cell reads and binds, rule by rule; test_cell_run.py runs cells."""

import re
import sys
from textwrap import dedent

import pytest
from IPython.core.autocall import ExitAutocall
from IPython.core.inputtransformer2 import TransformerManager
from IPython.display import display

from nbmgpu.cell import Cell, read_cell
from nbmgpu.cell.source import with_magic_line
from nbmgpu.errors import CellError, UnknownNameError

NOTEBOOK = dict.fromkeys("abcdefghxyz", 1) | {"model": 1, "loader": 1, "data": 1, "_": 1}


def read(source: str, **more: object) -> Cell:
    return read_cell(dedent(source), NOTEBOOK | more)


def names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def since(*version: int) -> list[pytest.MarkDecorator]:
    return [pytest.mark.skipif(sys.version_info < version, reason=f"syntax of {version}")]


# --------------------------------------------------------------- reads and writes

CASES = [
    # straight-line code
    ("print(x)", "x", ""),
    ("a = b", "b", "a"),
    ("x = 3; print(x)", "", "x"),
    ("print(x); x = 3", "x", "x"),
    ("x = x + 1", "x", "x"),
    ("x += 1", "x", "x"),
    ("x: int = y", "y", "x"),
    ("x: y = 1", "y", "x"),
    ("x: y", "y", ""),
    ("x: 'y' = 1", "", "x"),
    ("from __future__ import annotations\nx: y = 1", "", "annotations x"),
    ("a, (b, *c) = x", "x", "a b c"),
    ("a = b = x", "x", "a b"),
    ("x[a] = b", "x a b", ""),
    ("x.a = b", "x b", ""),
    ("x[0] += a", "x a", ""),
    ("model.to(x).train(); y.z.x", "model x y", ""),
    ("print(f'{x:{y}} {z!r}')", "x y z", ""),
    ("f'{(a := x)}'; a", "x", "a"),
    ("print(len(x))", "x", ""),
    # names in other places than variables
    ("f(a=b)", "f b", ""),
    ("{'x': a}", "a", ""),
    # deleting
    ("del x", "x", ""),
    ("x = 1; del x", "", "x"),
    ("del x; print(x)", "x", ""),
    ("del a.b, c[d]", "a c d", ""),
    # imports
    ("import a.b, c as d", "", "a d"),
    ("import a.b.c as d", "", "d"),
    ("from x import y, z as a", "", "y a"),
    ("import x; x.y", "", "x"),
    # := and conditional expressions
    ("(x := 1); x", "", "x"),
    ("a and (x := 1); x", "a x", "x"),
    ("(x := a) and x", "a", "x"),
    ("(x := 1) if a else 2; x", "a x", "x"),
    ("(x := 1) if a else (x := 2); x", "a", "x"),
    ("a < b < (x := 1); x", "a b x", "x"),
    ("assert a, (x := 1); x", "a x", "x"),
    ("[y := i for i in a]; y", "a y", "y"),
    ("[(y, y := 1) for i in a]", "a y", "y"),
    # if
    ("if a: x = 1\nx", "a x", "x"),
    ("if a: x = 1\nelse: x = 2\nx", "a", "x"),
    ("if a: x = 1\nelif b: x = 2\nelse: raise c\nx", "a b c", "x"),
    ("if True: x = 1\nx", "", "x"),
    ("if False: x = a\nx", "x", ""),
    # loops
    ("for x, y in loader: print(x, y)", "loader", "x y"),
    ("for x in a: pass\nprint(x)", "a x", "x"),
    ("for x in x: pass", "x", "x"),
    ("for i in a:\n    if b: continue\n    x = 1\n    x", "a b", "i x"),
    ("for i in a:\n    print(x)\n    x = 1", "a x", "i x"),
    ("for i in a: x = 1\nelse: y = 1\nx; y", "a x", "i x y"),
    ("for i in a:\n    if b: break\nelse: y = 1\ny", "a b y", "i y"),
    ("for x[a] in b: pass", "x a b", ""),
    ("while (x := f()): y = 1\nx; y", "f y", "x y"),
    ("while True:\n    x = f()\n    if x: break\nx", "f", "x"),
    ("while True:\n    if a: break\n    x = 1\nx", "a x", "x"),
    ("while a: x = 1\nelse: y = 1\nx; y", "a x", "x y"),
    ("raise a\nprint(x)", "a", ""),
    # try
    ("try: x = f()\nexcept a: x = 1\nx", "f a", "x"),
    ("try: x = f()\nexcept a: pass\nx", "f a x", "x"),
    ("try: x = f()\nexcept a: raise\nx", "f a", "x"),
    ("try: x = f()\nfinally: x", "f x", "x"),
    ("try: pass\nfinally: x = 1\nx", "", "x"),
    ("try: f()\nexcept a: x = 1\nelse: x = 2\nx", "f a", "x"),
    ("try: f()\nexcept (a, b.c) as x: print(x)", "f a b", ""),
    ("try: f()\nexcept a as x: raise\ny = 1", "f a", "y"),
    pytest.param("try: f()\nexcept* a as x: y = x", "f a", "y", marks=since(3, 11)),
    # with
    ("with f() as x: y = x", "f", "x y"),
    ("with f() as x: y = 1\nx; y", "f y", "x y"),
    ("with f() as (a, b): pass\na", "f a", "a b"),
    ("with f() as x, g(x) as y: pass\nx; y", "f g y", "x y"),
    ("with open(a) as x: y = x.read()\ny", "a", "x y"),
    ("with model.no_grad(): y = f()\ny", "model f", "y"),
    # match
    ("match a:\n    case [b, *c]: b, c", "a", "b c"),
    ("match a:\n    case {'x': b, **c}: b, c", "a", "b c"),
    ("match a:\n    case f(b, x=c) as d: d", "a f", "b c d"),
    ("match a:\n    case model.x: y = 1\ny", "a model y", "y"),
    ("match a:\n    case 1: y = 1\n    case _: y = 2\ny", "a", "y"),
    ("match a:\n    case 1: y = 1\n    case x if b: y = 2\ny", "a b y", "y x"),
    ("match a:\n    case 1 | 2: y = 1\n    case x: y = x\ny", "a", "y x"),
    # functions
    ("def f(a, b=c, *d, e=x, **g): return a, b, d, e, g, y", "c x y", "f"),
    ("def f(a, /, b): a, b", "", "f"),
    ("@a\n@b.c(d)\ndef f(): pass", "a b d", "f"),
    ("def f(u: x, *v: 'y') -> z: pass", "x z", "f"),
    ("from __future__ import annotations\ndef f(u: x) -> z: pass", "", "annotations f"),
    ("def f(): return f()", "", "f"),
    ("@a\ndef f(): return f()", "a", "f"),
    ("def f(): x = 1; return x", "", "f"),
    ("def f(): return x\nx = 1; f()", "x", "f x"),
    ("x = 1\ndef f(): return x", "", "x f"),
    ("def f():\n    global x\n    x = y\n    return x", "y", "f x"),
    ("def f():\n    global x\n    x = 1\nf(); x", "x", "f x"),
    ("def f():\n    global x\n    def g(): return x", "x", "f"),
    ("def f():\n    global x\n    x += 1", "x", "f x"),
    ("def f():\n    for x in a: pass\n    return x", "a", "f"),
    ("def f():\n    import x\n    def g(): return x\n    return g", "", "f"),
    ("def f():\n    x = 1\n    def g():\n        nonlocal x\n        x += y", "y", "f"),
    ("def f():\n    try: pass\n    except a as x: x", "a", "f"),
    ("def f():\n    with a as x: x", "a", "f"),
    ("def f():\n    [x := i for i in a]\n    return x", "a", "f"),
    ("def f():\n    x: y = 1\n    a.b: y = 2", "a", "f"),
    ("def f():\n    match a:\n        case [x, *y]: x, y\n        case {**z}: z", "a", "f"),
    ("def f():\n    def x(): pass\n    class y: pass\n    return x, y", "", "f"),
    ("def f():\n    del x", "", "f"),
    ("def f():\n    global x\n    del x", "x", "f"),
    ("def f():\n    def g(x=(y := 1)): pass\n    return y", "", "f"),
    ("def f():\n    return 1\n    print(x)", "", "f"),
    ("async def f():\n    async for x in a: await x\n    async with b as y: return y", "a b", "f"),
    # lambdas and comprehensions
    ("f = lambda x, y=z: x + y + a", "z a", "f"),
    ("[x for x in y if x > a]", "a y", ""),
    ("[x for x in x]", "x", ""),
    ("{a: b for a, b in x for c in a if d}", "x d", ""),
    ("(x for y in a for x in y)", "a", ""),
    ("[[x for x in y] for y in z]", "z", ""),
    ("[lambda: x for x in a]", "a", ""),
    ("f = lambda: (x := 1); x", "x", "f"),
    # classes
    ("class A(b, metaclass=c): d = x", "b c x", "A"),
    ("@a\nclass A: pass", "a", "A"),
    ("class A:\n    x = 1\n    y = x\n    def f(self): return x", "x", "A"),
    ("class A:\n    x = x", "x", "A"),
    ("class A:\n    if a: x = 1\n    y = x", "a x", "A"),
    ("class A:\n    x = 1\n    del x\n    y = x", "x", "A"),
    ("class A:\n    a = [1]\n    b = [i for i in a]", "", "A"),
    ("class A:\n    a = 1\n    b = [a for i in c]", "a c", "A"),
    ("class x:\n    def f(self): return x", "", "x"),
    ("class x:\n    y = x", "x", "x"),
    ("def f():\n    x = 1\n    class A:\n        nonlocal x\n        x += 1", "", "f"),
    ("class A:\n    def f(self): return A, __class__, super().f()", "", "A"),
    ("class A:\n    print(__qualname__, __module__)", "", "A"),
    ("class A:\n    global x\n    x = 1\nx", "", "x A"),
    ("class A:\n    y: x", "x", "A"),
    ("class A:\n    def f(self):\n        self.__x = __y", "", "A"),
    ("class A:\n    class B:\n        x = y\n    z = B", "y", "A"),
    ("def f():\n    class A:\n        def g(self): return A, x\n    return A", "x", "f"),
    # type parameters
    pytest.param("def f[T](u: T, v: x) -> T: return T, y", "x y", "f", marks=since(3, 12)),
    pytest.param("class A[T: a](b[T]):\n    def f(self): return T", "a b", "A", marks=since(3, 12)),
    pytest.param("type X[T] = list[T] | x | X", "x", "X", marks=since(3, 12)),
    pytest.param("class A:\n    y = 1\n    type X[T] = y", "", "A", marks=since(3, 12)),
    pytest.param("class A[__T]:\n    x = __T", "", "A", marks=since(3, 12)),
    pytest.param("def f[T = x](): pass", "x", "f", marks=since(3, 13)),
    # pandas looks up @name in the caller's variables
    ("data.query('a > @x and b in @y')", "data x y", ""),
    ("data.query(f'u > @x + {y}')", "data x y", ""),
    ("x = 1; data.query('u > @x')", "data", "x"),
    # names in strings count when the cell evaluates strings
    ("eval('x + y')", "x y", ""),
    ("x = 1; exec('print(x, y)')", "y", "x"),
    ("globals()['x'] + 1", "x", ""),
    ("print('x')", "", ""),
    ("eval = f; eval('x')", "f", "eval"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "reads", "writes"), CASES)
def test_names(source: str, reads: str, writes: str) -> None:
    cell = read_cell(source, NOTEBOOK | {"_A__y": 1} if "__y" in source else NOTEBOOK)
    expected = sorted((*names(reads), "_A__y") if "__y" in source else names(reads))
    assert sorted(cell.reads) == expected
    assert cell.writes == names(writes)


def test_reads_are_in_order_of_appearance() -> None:
    assert read("[z for i in y if x]\na = b\nprint(f, c, b)").reads == names("z y x b f c")


def test_deletes() -> None:
    cell = read(
        """
        del x, y[0]
        def f():
            global z
            del z
            a = 1
            del a
        try: f()
        except ValueError as e: pass
        """
    )
    assert cell.deletes == ("x", "z")


def test_source_and_code_are_kept() -> None:
    cell = read("y = %time x\n")
    assert cell.source == "y = %time x\n"
    assert cell.code == "y = get_ipython().run_line_magic('time', 'x')\n"


def test_only_the_notebooks_names_are_sent() -> None:
    cell = read("print(__name__, In, Out, get_ipython, display, exit, open, _, __, ___, _i3, sum)")
    assert cell.reads == ("_",)


def test_a_shadowed_builtin_is_sent() -> None:
    assert read("sum(x)", sum=1).reads == ("sum", "x")
    assert read("exit(open, display)", exit=1, open=print, display=2).reads == names(
        "exit open display"
    )


def test_names_defined_by_ipython_are_not_sent() -> None:
    own = {"display": display, "exit": ExitAutocall(), "open": open, "In": [""], "__name__": "m"}
    assert read("print(display, exit, open, In, __name__)", **own).reads == ()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("await x", True),
        ("async for i in x: pass", True),
        ("async with x: pass", True),
        ("[i async for i in x]", True),
        ("async def f(): await x", False),
        ("f(x)", False),
    ],
)
def test_needs_await(source: str, expected: bool) -> None:
    assert read(source).needs_await is expected


# --------------------------------------------------------------- star imports


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    yield write
    for name in [name for name in sys.modules if name.startswith("star_")]:
        del sys.modules[name]


def test_star_import(module) -> None:
    module("star_plain", "x = 1; _hidden = 2")
    cell = read("from star_plain import *\nprint(x, y)")
    assert cell.star_imports == ("star_plain",)
    assert cell.reads == ("y",)  # x is the module's
    assert cell.writes == ()
    with pytest.raises(UnknownNameError, match="_hidden"):
        read("from star_plain import *\n_hidden")


def test_star_import_respects_all(module) -> None:
    module("star_all", "x = 1; _u = 2; v = 3\n__all__ = ['_u']")
    assert read("from star_all import *\n_u, x").reads == ("x",)
    with pytest.raises(UnknownNameError, match="'v'"):
        read("from star_all import *\nv")


@pytest.mark.parametrize("text", ["import nowhere_to_be_found", "raise SystemExit", "x ="])
def test_star_import_of_a_broken_module_is_left_to_the_cell(module, text: str) -> None:
    module("star_broken", text)
    assert read("from star_broken import *\nwho_knows(x)").reads == ("x",)


# --------------------------------------------------------------- magics and shell lines

MAGICS = [
    ("!ls $y {x} '{z}' $$a", "x y z", ""),
    ("!echo {x + len(y)} $model.a {a:>{b}}", "x y model a b", ""),
    ("!echo $HOME {nowhere}", "", ""),
    ("!awk '{print $1}' file", "", ""),
    ("files = !ls {x}\nprint(files)", "x", "files"),
    ("x = 1\n!echo $x", "", "x"),
    ("for i in x:\n    !echo $i $y", "x y", "i"),
    ("%time u = f(x)", "f x", "u"),
    ("%time --no-raise-error f(x)", "f x", ""),
    ("%time x = 1\nx", "x", "x"),  # %time may have caught an exception
    ("u = %timeit -n 10 -r3 -qo f(x)", "f x", "u"),
    ("%timeit u = x; u", "x", ""),
    ("%prun -s cumtime -l 5 u = f(x)", "f x", "u"),
    ("%time f(x", "f x", ""),
    ("%cd $x", "x", ""),
    ("%pip install {x}", "x", ""),
    ("%memit f(x)", "f x", ""),
    ("model?", "model", ""),
    ("%%time\n\nu = f(x)\n%time v = u", "f x", "u v"),
    ("%%capture out --no-stderr\nu = f(x)\n!ls $y", "f x y", "u out"),
    ("%%time\n%%capture out\nu = x", "x", "u out"),
    ("%%timeit u = x\nv = u + y", "x y", ""),
    ("%%prun -q\nu = f(x)", "f x", "u"),
    ("%%bash --out u --err=v\necho $x {y}", "", "u v"),
    ("%%writefile {x}\ny", "x", ""),
    ("%%cython -a\nu = f(x)", "a f x", ""),
    ("%%sql $x\nselect y from d", "x y d", ""),
    ("def f():\n    y = 1\n    !echo $x $y", "x", "f"),
    ("get_ipython().run_line_magic('time', 'f(x)')", "f x", ""),
]


@pytest.mark.parametrize(("source", "reads", "writes"), MAGICS)
def test_magics(source: str, reads: str, writes: str) -> None:
    cell = read(source)
    assert sorted(cell.reads) == sorted(names(reads))
    assert cell.writes == names(writes)


def test_a_custom_transform_is_used() -> None:
    manager = TransformerManager()
    manager.line_transforms.append(lambda lines: [line.replace("§", "print ") for line in lines])
    transform = lambda text: re.sub(r"print (\w+)", r"print(\1)", manager.transform_cell(text))
    assert read_cell("§x", NOTEBOOK, transform).code == "print(x)\n"
    assert read_cell("%%time\n§x", NOTEBOOK, transform).reads == ("x",)


# --------------------------------------------------------------- unknown names


@pytest.mark.parametrize(
    ("source", "name", "line", "instead"),
    [
        ("modle.train()", "modle", 1, "model.train()"),
        ("x = 1\n\nfor i in laoder:\n    pass", "laoder", 3, "for i in loader:"),
        ("def f():\n    return modle", "modle", 2, "return model"),
        ("f = lambda: modle", "modle", 1, "f = lambda: model"),
        ("class A:\n    def f(self):\n        return modle", "modle", 3, "return model"),
        ("@modle\ndef f(): pass", "modle", 1, "@model"),
        ("def f(a=modle): pass", "modle", 1, "def f(a=model): pass"),
        ("print(f'{modle}')", "modle", 1, "print(f'{model}')"),
        ("[modle for i in x]", "modle", 1, "[model for i in x]"),
        ("epoch = 1\nprint(epohc)", "epohc", 2, "print(epoch)"),
        ("pirnt(x)", "pirnt", 1, "print(x)"),
        ("del modle", "modle", 1, "del model"),
        ("modle += 1\ndel modle2", "modle2", 2, "del modle"),
        ("try: modle\nexcept ValueError: pass", "modle", 1, "try: model"),
        ("try: pass\nexcept NameError: modle", "modle", 2, "except NameError: model"),
        ("try: modle\nexcept NameError: pass\nmodle", "modle", 3, "model"),
        ("\n\n  x = 1\n  modle(x)", "modle", 4, "model(x)"),
        ("!ls \\\n  -l\nmodle(x)", "modle", 3, "model(x)"),
        ("%%time\n\nx = 1\nmodle(x)", "modle", 4, "model(x)"),
        ("x = 1\n%time modle(x)", "modle", 2, "%time model(x)"),
        (">>> x = 1\n>>> modle(x)", "modle", 2, ">>> model(x)"),
        ("from math import *\nsinn(pi)", "sinn", 2, "sin(pi)"),
        ("class A:\n    def f(self): return __modle", "_A__modle", 2, None),
        ("qqqqqq(x)", "qqqqqq", 1, None),
    ],
)
def test_unknown_name(source: str, name: str, line: int, instead: str | None) -> None:
    with pytest.raises(UnknownNameError) as caught:
        read_cell(source, NOTEBOOK)
    message = str(caught.value)
    assert repr(name) in message
    assert f"Line {line} of the cell, `{source.splitlines()[line - 1].strip()}`" in message
    assert message.endswith(f"Try: {instead}" if instead else "run the cell that binds it first.")
    assert isinstance(caught.value, NameError)
    assert isinstance(caught.value, CellError)


@pytest.mark.parametrize(
    ("source", "suggestion"),
    [
        ("dist.all_reduce(t)", "import torch.distributed as dist"),
        ("a = np.zeros(3)", "import numpy as np"),
        ("pd.DataFrame()", "import pandas as pd"),
        ("plt.plot([1])", "import matplotlib.pyplot as plt"),
        ("F.relu(1)", "import torch.nn.functional as F"),
        ("nn.Linear(1, 1)", "from torch import nn"),
        ("optim.SGD([])", "from torch import optim"),
        ("for i in tqdm(range(3)): pass", "from tqdm.auto import tqdm"),
        ("sns.set_theme()", "import seaborn as sns"),
        ("sklearn.__version__", "import sklearn"),
        ("random.seed(1)", "import random"),
        ("DataLoader([])", "from torch.utils.data import DataLoader"),
    ],
)
def test_a_conventional_alias_suggests_its_import(source: str, suggestion: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        read_cell(source, {})
    assert str(caught.value).endswith(f"\nTry: {suggestion}")


@pytest.mark.parametrize("source", ["lists.all_reduce(t)", "f(lists)\nlists.all_reduce(t)"])
def test_a_builtin_without_the_attribute_is_not_suggested(source: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        read_cell(source, {"t": 1, "f": print})
    assert "list." not in str(caught.value)
    assert "Try:" not in str(caught.value)


def test_a_builtin_with_the_attribute_is_suggested() -> None:
    with pytest.raises(UnknownNameError, match=r"Try: str\.join"):
        read_cell("strr.join([])", {})


@pytest.mark.parametrize(
    ("body", "source"),
    [
        ("x = 1\n", "# %%mgpu --gpus 2\nx = 1\n"),
        ("\n  x = 1\n", "  # %%mgpu --gpus 2\n\n  x = 1\n"),
        ("%%time\nx = 1", "%%time\nx = 1"),
        ("\n%%time\nx = 1", "\n%%time\nx = 1"),
        (" \n", " \n"),
    ],
)
def test_the_magic_line_precedes_the_body_as_a_comment(body: str, source: str) -> None:
    assert with_magic_line("%%mgpu --gpus 2 ", body) == source


def test_the_first_unknown_name_is_reported() -> None:
    with pytest.raises(UnknownNameError, match="'first'"):
        read("first(x)\nsecond(x)")


@pytest.mark.parametrize(
    "source",
    [
        "try: q\nexcept NameError: pass",
        "try: q\nexcept (KeyError, NameError) as e: pass",
        "try: q\nexcept Exception: pass",
        "try: q\nexcept: pass",
        "try:\n    def f(): return q\nexcept NameError: pass",
        "import contextlib\nwith contextlib.suppress(NameError): q",
        "if 'q' in globals(): q",
        "if 'q' in vars(): q",
        "if 'q' in dir(): q",
        "exec('q = 1'); q",
        "get_ipython().user_ns['q'] = 1\nq",
        "%run script.py\nq",
        "%my_own_magic\nq",
        "%%my_own_magic\nq",
        "from __future__ import annotations\ndef f(u: q) -> q: pass",
        "def f():\n    u: q = 1",
        "x: 'q' = 1",
        "if False: q",
        "while True: pass\nq",
        "def f(): return q\nq = 1",
        "def f(): return q\nimport q",
        "def f():\n    global q\n    q = 1\nf(); q",
        "print(q); q = 1",
        "try: f()\nexcept ValueError as q: pass\nq",
        "class A:\n    if x: q = 1\n    r = q",
        "class A:\n    def f(self): return __class__",
        "_, __, ___, _12, _i, _ii, _iii, _i7, In, Out, _ih, _oh, _dh, exit, quit, __name__",
        "get_ipython().ast_node_interactivity",
        "print(__debug__, NotImplemented, __build_class__)",
        pytest.param("type X = q", marks=since(3, 12)),
        pytest.param("def f[T: q](): pass", marks=since(3, 12)),
    ],
)
def test_possibly_bound_names_are_not_reported(source: str) -> None:
    assert "q" not in read(source).reads


def test_names_that_a_notebook_function_binds_are_known() -> None:
    notebook: dict[str, object] = {}
    code = """
        import functools
        def decorated(function): return functools.wraps(function)(lambda: function())
        @decorated
        def setup():
            def inner():
                global config
                config = 1
            inner()
        class Run:
            def go(self):
                global state
        """
    exec(dedent(code), notebook)
    assert read_cell("setup(); print(config)", notebook).reads == ("setup",)
    with pytest.raises(UnknownNameError, match="'state'"):
        read_cell("Run().go(); print(state)", notebook)


# --------------------------------------------------------------- syntax errors


@pytest.mark.parametrize(
    ("source", "message", "line", "offset", "text"),
    [
        ("x = = 3", "invalid syntax", 1, 5, "x = = 3"),
        ("x = 1\nreturn x", "'return' outside function", 2, 1, "return x"),
        ("break", "'break' outside loop", 1, 1, "break"),
        ("def f():\n    await x", "'await' outside async function", 2, 5, "    await x"),
        ("def f():\n    nonlocal q", "no binding for nonlocal 'q' found", 2, 5, "    nonlocal q"),
        ("\n\n  x = 1\n  y = = 2", "invalid syntax", 4, 7, "  y = = 2"),
        (">>> x = 1\n>>> y = = 2", "invalid syntax", 2, 9, ">>> y = = 2"),
        ("!ls \\\n -l\nx = = 1", "invalid syntax", 3, 5, "x = = 1"),
        ("%%time\n\nx = 1\nif x\n    y", "expected ':'", 4, 5, "if x"),
        ("%%time\n%%capture u\nx = = 1", "invalid syntax", 3, 5, "x = = 1"),
        ("%%timeit x = = 1\nx", "invalid syntax", 1, 14, "%%timeit x = = 1"),
        (
            "\nif x:\nprint(x)",
            "expected an indented block after 'if' statement on line 2",
            3,
            1,
            "print(x)",
        ),
    ],
)
def test_syntax_error(source: str, message: str, line: int, offset: int, text: str) -> None:
    with pytest.raises(SyntaxError) as caught:
        read_cell(source, NOTEBOOK)
    error = caught.value
    assert (error.msg, error.filename) == (message, "<cell>")
    assert (error.lineno, error.offset, error.text) == (line, offset, text + "\n")
    assert error.end_lineno is None or error.end_lineno >= line


@pytest.mark.parametrize(
    ("source", "offset", "end"), [("\n  x = (", 7, 0), ("\n  x = 1\n    y = 2", 4, -1)]
)
def test_a_syntax_error_without_an_end_keeps_none(source: str, offset: int, end: int) -> None:
    with pytest.raises(SyntaxError) as caught:
        read_cell(source, NOTEBOOK)
    assert caught.value.text == source.splitlines()[-1] + "\n"
    assert (caught.value.offset, caught.value.end_offset) == (offset, end)


def test_indentation_error_keeps_its_type() -> None:
    with pytest.raises(IndentationError):
        read_cell("if x:\nprint(x)", NOTEBOOK)


def test_a_long_cell_can_be_read() -> None:
    chain = "".join(f"{'el' if i else ''}if x == {i}: y\n" for i in range(80))
    assert read(chain + "z = " + " + ".join(["a"] * 200)).reads == ("x", "y", "a")


def test_no_syntax_warning_is_shown_twice() -> None:
    assert read_cell("x is 1; '\\d'", NOTEBOOK).reads == ("x",)  # warnings are errors here


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ("c = {k: v for k, v in globals().items() if type(v) is int}", ["lr", "name"]),
        ("if 'lr' in vars(): pass", ["lr", "name"]),
        ("'{lr}'.format(**locals())", ["lr", "name"]),
        ("globals()['lr']", ["lr"]),
        ("vars(model)", ["model"]),
    ],
)
def test_plain_values_are_sent_if_the_cell_lists_its_namespace(source, reads):
    notebook = {"lr": 0.1, "name": "a", "model": object(), "data": [1], "_i1": "x", "__doc__": ""}
    assert sorted(read_cell(source, notebook).reads) == reads
