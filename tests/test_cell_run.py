"""Cells run with only the names that they read have the same effects as with all names.

Both runs must have the same output, error and values.  Names that were bound or deleted must be
among those that the analysis predicts.
"""

import ast
import atexit
import contextlib
import io
import random
import re
import sys
from collections.abc import Iterator
from textwrap import dedent

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from nbmgpu.cell import Cell, read_cell

NOTEBOOK = """
    import math
    from contextlib import nullcontext, suppress
    a, b, c, total, last, n, k, note = 2, 3, 4, 5, 6, 7, 8, 9
    items, table = [1, 2, 3], {"n": 5, "sep": "-"}
    left = [12]
    def double(n): return 2 * n
    def twice(f): return lambda n: f(f(n))
    class Base(Exception): pass
    class OutOfTime(BaseException): pass
    def tick():
        left[0] -= 1
        if left[0] < 0: raise OutOfTime
        return left[0] % 3
    """

SNIPPETS = [
    "print(a); a = 5; print(a)",
    "a = a + 1; b += a",
    "(c := [1]).append(2); print(c)",
    "items.append(4); print(items)",
    "items[0], table['n'] = 9, a; print(items, table)",
    "for i in items:\n    total = i\nprint(total)",
    "for total in []: pass\nprint(total)",
    "for i in items:\n    if i > 1: break\nelse:\n    total = 0\nprint(i, total)",
    "for items[0] in range(3): pass\nprint(items)",
    "while a:\n    a -= 1\nprint(a)",
    "while True:\n    a -= 1\n    if a < 0: break\n    continue\nprint(a)",
    "if a: b = 7\nprint(b)",
    "if a > 100: b = 7\nprint(b)",
    "if a > 100: b = 7\nelse: b = 8\nprint(b)",
    "try:\n    b = 1 / 0\nexcept ZeroDivisionError as a:\n    print(a)\nprint(b)",
    "try:\n    b = 1 / 0\nexcept ZeroDivisionError:\n    b = 2\nfinally:\n    print(b)",
    "try:\n    a = 1\n    b = 1 / 0\nfinally:\n    print(a)",
    "try: undefined\nexcept NameError: print('none')",
    "try: a\nexcept NameError: a = 0\nprint(a)",
    "with suppress(ZeroDivisionError):\n    a = 1\n    b = 1 / 0\nprint(a, b)",
    "with suppress(KeyError) as a, suppress(ValueError) as b:\n    int('x')\nprint(a, b)",
    "with nullcontext(4) as a: b = a\nprint(b)",
    "def first(): return a\nprint(first()); a = 10; print(first())",
    "a = 10\ndef first(): return a\nprint(first())",
    "def count():\n    global total\n    total += 1\ncount(); count(); print(total)",
    "def count():\n    global fresh\n    fresh = a\ncount(); print(fresh)",
    "def outer():\n    n = a\n    def inner():\n        nonlocal n\n        n += b\n"
    "        return n\n    return inner()\nprint(outer())",
    "def fact(n): return 1 if n < 2 else n * fact(n - 1)\nprint(fact(5))",
    "double = twice(double)\nprint(double(1))",
    "@twice\ndef step(n): return n + a\nprint(step(1))",
    "def late(n=a): return n\na = 99; print(late())",
    "def typed(n: Base, m: 'nothing') -> list: return n\nprint(typed(3, 4))",
    "print([x * a for x in items if x > b], [total for total in items], total)",
    "print([(last := x) for x in items], last)",
    "print([last for x in items if (last := x)])",
    "g = (x + a for x in items); a = 50; print(list(g))",
    "print(sorted(items, key=lambda n: -n * a))",
    "print({k: v for k, v in table.items()}, {x for x in items})",
    "class A:\n    a = a\n    total = [a]\n    def get(self): return a, self.a\n"
    "print(A().get(), A.total)",
    "class A:\n    if b > 100: a = 0\n    kept = a\nprint(A.kept)",
    "class A:\n    a = 1\n    del a\n    kept = a\nprint(A.kept)",
    "class B(Base):\n    def __init__(self): super().__init__(); self.__n = a\n"
    "    def n(self): return self.__n, B.__name__\nprint(B().n())",
    "import math as m\nprint(m.floor(2.5), math.pi)",
    "from math import *\nprint(floor(2.5))",
    "import math\nprint(math.pi)",
    "del a\nprint(a)",
    "del b; b = 3; print(b)",
    "match items:\n    case [a, *b]: pass\nprint(a, b)",
    "match table:\n    case {'n': 99}: a = 0\n    case {'n': c, **d} if c: print(c, d)\nprint(a)",
    "match a:\n    case int(n): print(n)\n    case Base(): print('base')",
    "print(f'{a:>{b}} {items!r} {(n := b)}', n)",
    "print(a if b else c); b and (a := 5); print(a)",
    "a: int = 4; note: Base = 3; print(a)",
    "sum = sum(items); print(sum)",
    "assert a, b\nprint(a)",
    "assert not a, f'{b} {c}'",
    "raise Base\nprint(undefined_and_never_reached)",
    "if 'a' in globals(): print(a)\nif 'zzz' in globals(): print(zzz)",
    "print(eval('a + b')); exec('print(c)')",
    "x, y = y, x = a, b\nprint(x, y)",
    "(lambda: print(a))(); a = 3",
    "print(*items, **{'sep': table['sep']})",
    "print(items[a - 1:b], -c, not a, a < b < c)",
]


def notebook() -> dict[str, object]:
    """Return a new namespace of a notebook."""
    space: dict[str, object] = {"__name__": "__main__"}
    exec(dedent(NOTEBOOK), space)
    return space


def run(source: str, space: dict[str, object]) -> tuple[str, str]:
    """Run a cell; return its output and its error."""
    printed, error = io.StringIO(), ""
    with contextlib.redirect_stdout(printed):
        try:
            exec(source, space)
        except BaseException as raised:
            # The message for a missing name differs between classes and functions.
            error = type(raised).__name__ + ("" if isinstance(raised, NameError) else str(raised))
    return without_addresses(printed.getvalue()), without_addresses(error)


def comparable(value: object) -> str:
    """Return the repr of a value without addresses."""
    return without_addresses(repr(value))


def without_addresses(text: str) -> str:
    return re.sub(r"0x\w+", "", text)


def check(source: str, transform=None) -> Cell:
    whole, part = notebook(), notebook()
    cell = read_cell(source, whole, transform)
    part = {n: v for n, v in part.items() if n in ("__name__", "__builtins__", *cell.reads)}
    before = dict(whole)
    assert run(source, whole) == run(source, part)

    starred = {name for module in cell.star_imports for name in vars(sys.modules[module])}
    unbound = {h.name for h in ast.walk(ast.parse(source)) if isinstance(h, ast.ExceptHandler)}
    changed = {n for n in whole if whole[n] is not before.get(n, ...) and n != "__annotations__"}
    assert changed <= {*cell.writes, *starred}
    assert before.keys() - whole.keys() <= {*cell.deletes, *unbound}
    for name in (changed | {*cell.reads}) & whole.keys():
        assert comparable(whole[name]) == comparable(part[name]), name
    return cell


@pytest.mark.parametrize("source", SNIPPETS)
def test_the_names_read_are_sufficient(source: str) -> None:
    check(source)


# --------------------------------------------------------------- random programs

PARTS = {
    "value": [
        "NAME", "NAME", "1", "(VALUE + VALUE)", "(NAME := VALUE)", "(VALUE if VALUE else VALUE)",
        "(VALUE and VALUE)", "[VALUE for NAME in [VALUE] if VALUE]", "(lambda NAME: VALUE)(VALUE)",
        "(VALUE < VALUE < VALUE)", "f'{VALUE}'",
    ],
    "line": [
        "NAME = VALUE", "NAME = VALUE", "print(VALUE)", "print(NAME)", "NAME += VALUE", "del NAME",
        "NAME, NAME = VALUE, VALUE", "NAME()", "import math as NAME", "raise ValueError", "BLOCK",
        "BLOCK", "BLOCK", "BLOCK",
    ],
    "loop line": ["break", "continue", "if VALUE: break", "if VALUE: continue"],
    "block": [
        "if VALUE:\n    BODY",
        "if VALUE:\n    BODY\nelse:\n    BODY",
        "for NAME in range(2):\n    LOOP",
        "for NAME, NAME in [(1, VALUE)]:\n    LOOP\nelse:\n    BODY",
        "while tick():\n    LOOP\nelse:\n    BODY",
        "while True:\n    tick()\n    LOOP",
        "try:\n    BODY\nexcept (ValueError, TypeError) as NAME:\n    BODY\nelse:\n    BODY",
        "try:\n    BODY\nexcept NameError:\n    BODY\nfinally:\n    BODY",
        "try:\n    BODY\nfinally:\n    BODY",
        "with suppress(Exception), suppress(TypeError) as NAME:\n    BODY",
        "with nullcontext(VALUE) as NAME:\n    BODY",
        "def NAME(arg=VALUE):\n    BODY\n    return VALUE",
        "def NAME(arg=VALUE):\n    global NAME\n    BODY",
        "class Inner:\n    BODY",
        "match VALUE:\n    case int(NAME) if VALUE:\n        BODY\n    case NAME:\n        BODY",
    ],
}  # fmt: skip


class ProgramGenerator:
    """Generates a program by expanding the words in capitals."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def fill(self, text: str, depth: int = 0) -> str:
        def replaced(found: re.Match[str]) -> str:
            space, word = found.groups()
            if word == "NAME":
                return space + self.random.choice("abc")
            if word == "VALUE":
                return space + self.fill(self.pick("value", 3 if depth > 2 else None), depth + 1)
            return "\n".join(space + line for line in self.body(word, depth + 1).split("\n"))

        return re.sub(r"((?<=\n) *|)\b(NAME|VALUE|BODY|LOOP)\b", replaced, text)

    def pick(self, part: str, first: int | None = None) -> str:
        return self.random.choice(PARTS[part][:first])

    def body(self, word: str, depth: int) -> str:
        lines = []
        for _ in range(self.random.randint(1, 3)):
            line = self.pick("line", -4 if depth > 3 else None)
            lines.append(self.fill(self.pick("block") if line == "BLOCK" else line, depth))
        if word == "LOOP":
            lines.insert(
                self.random.randint(0, len(lines)), self.fill(self.pick("loop line"), depth)
            )
        return "\n".join(lines)


def test_random_programs() -> None:
    tried = 0
    for seed in range(600):
        source = ProgramGenerator(seed).body("", 0)
        try:
            compile(source, "<cell>", "exec")
        except SyntaxError:  # such as ``global a`` after a use of it
            continue
        tried += 1
        try:
            check(source, transform=str)
        except BaseException:
            print(source)
            raise
    assert tried > 400


# --------------------------------------------------------------- magics in a real shell


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # the shell replaces it
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    yield shell
    shell.atexit_operations()
    atexit.unregister(shell.atexit_operations)


@pytest.mark.parametrize(
    "source",
    [
        "listed = !echo {a} $b\nprint(listed)",
        "u = %timeit -n 1 -r 1 -q -o double(a)\nprint(u is None)",
        "%time u = double(a)\nprint(u)",
        "%%time\nu = double(a)\nif u: v = [k for k in items]",
        "%%capture out\nprint(a)\nu = b",
        "%%timeit -n 1 -r 1 u = a\nv = u + b",
        "%%prun -q\nu = double(a)",
        "%%bash --out said\necho hello",
        "%env NBMGPU_TEST={a}",
    ],
)
def test_magics_run_with_only_the_names_they_read(shell: InteractiveShell, source: str) -> None:
    own = {*shell.user_ns}
    cell = read_cell(source, notebook() | shell.user_ns, shell.transform_cell)
    shell.user_ns.update({n: v for n, v in notebook().items() if n in cell.reads})
    result = shell.run_cell(source)
    assert result.success
    assert shell.user_ns.keys() - own - {*cell.reads} == {*cell.writes}
    assert "_" not in cell.reads
