"""Functions and classes of the notebook keep their identity and state."""

import pytest

CASES = {
    "a cached function": (
        "import functools\n@functools.lru_cache(maxsize=7)\ndef f(n): return n * 2\nold = f",
        "assert f(2) == f(2) == 4 and f.cache_info().hits == 1\nassert f.cache_info().maxsize == 7",
        "assert f is old and f(3) == 6",
    ),
    "a cached function that calls itself": (
        "import functools\n@functools.cache\n"
        "def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)",
        "assert fib(50) == 12586269025",
        "assert fib(60) == 1548008755920",
    ),
    "a cached method": (
        "import functools\nclass A:\n    @functools.lru_cache\n    def f(self, n): return n + 1\n"
        "a = A()",
        "assert a.f(1) == 2; a.seen = a.f(2)",
        "assert a.seen == a.f(2) == 3",
    ),
    "a cached function made in the cell": (
        "import functools",
        "@functools.cache\ndef g(n): return n + 1\nx = g(1)",
        "assert g(2) == 3 and x == 2",
    ),
    "the file of a function": (  # by which the lines of a cell are found
        "def f():\n    def g(): pass\n    return g\nfile = f.__code__.co_filename",
        "assert f.__code__.co_filename == f().__code__.co_filename == file\nown = f()",
        "assert f.__code__.co_filename == own.__code__.co_filename == file",
    ),
    "a cached property": (
        "import functools\nclass A:\n    @functools.cached_property\n    def p(self): return 5\n"
        "a = A()",
        "assert a.p == 5 and vars(a) == {'p': 5}",
        "assert vars(a) == {'p': 5} and A().p == 5",
    ),
    "a named tuple": (
        "import typing\nclass T(typing.NamedTuple):\n    a: int\n    b: str = 'x'\nt = T(2)",
        "assert (t.a, t.b) == (2, 'x') and isinstance(t, T)\nu = T(3, 'y'); v = t._replace(a=9)",
        "assert isinstance(u, T) and u == (3, 'y') and v.a == 9 and t == T(2)",
    ),
    "a list attribute of a base class": (
        "class R:\n    history = []\n    def note(self, v): self.history.append(v)\n"
        "class T(R):\n    def fit(self): self.note(1)\nt = T(); kept = R.history",
        "t.fit()",
        "assert t.history == [1] and R.history is kept",
    ),
    "attributes of a method": (
        "class A:\n    def f(self): A.f.calls.append(1)\nA.f.calls = []\na = A()",
        "a.f(); a.f()",
        "assert A.f.calls == [1, 1]",
    ),
    "a mutable default argument": (
        "class A:\n    def f(self, memo={}): memo[1] = 2; return memo\na = A()",
        "a.f()",
        "assert A.f.__defaults__ == ({1: 2},)",
    ),
    "closure variables of a decorated method": (
        "def counted(f):\n    seen = []\n    def inner(self): seen.append(1); return f(self)\n"
        "    inner.seen = lambda: seen\n    return inner\n"
        "class A:\n    @counted\n    def f(self): return 3\na = A()",
        "assert a.f() == 3",
        "assert A.f.seen() == [1] and a.f() == 3 and A.f.seen() == [1, 1]",
    ),
    "a descriptor": (
        "class D:\n    def __init__(self): self.reads = 0\n"
        "    def __get__(self, obj, kind): self.reads += 1; return 7\n"
        "class A:\n    d = D()\na = A()",
        "assert a.d == 7",
        "assert vars(A)['d'].reads == 1",
    ),
    "an attribute with a name like _abc": (
        "class A:\n    my_abc = 1\na = A()",
        "A.my_abc = 2",
        "assert a.my_abc == 2",
    ),
    "super() in a method": (
        "class B:\n    def f(self): return 1\n"
        "class A(B):\n    def f(self): return super().f() + 1\na = A()",
        "assert a.f() == 2; a.x = 1",
        "assert a.f() == 2 and a.x == 1 and type(a) is A",
    ),
    "an iterator of a list": (
        "it = iter([1, 2, 3])",
        "assert next(it) == 1",
        "assert list(it) == [2, 3]",
    ),
}


@pytest.mark.parametrize(("before", "cell", "after"), CASES.values(), ids=CASES.keys())
def test_effects_are_those_of_running_the_cell_in_the_notebook(notebook, before, cell, after):
    notebook.cell(before)
    restored = notebook.mgpu(cell)
    notebook.cell(after)
    assert not restored.refused
