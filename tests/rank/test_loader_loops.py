"""A loop trains only if it can reach a backward pass."""

import linecache
import sys
import textwrap

import pytest

from nbmgpu.rank.source_analysis.loader_loops import is_cycled
from nbmgpu.rank.source_analysis.training_loops import loop_trains

HELPERS = """
import torch
from tqdm import tqdm

def train_step(x):
    deeper(x)

def deeper(x):
    x.backward()

def measure(x):
    return x.mean()

class Trainer:
    def one(self, x):
        x.backward()
    def look(self, x):
        return x
    def fit(self, loader):
        for x in loader:
            self.one(x)

trainer = Trainer()
model = torch.nn.Linear(1, 1)
"""


class Probe:
    """A loader that checks, when it is iterated, whether the loop around it trains."""

    def __init__(self):
        self.answer = "not iterated"

    def __iter__(self):
        self.answer = loop_trains(sys._getframe(1))
        return iter(())


def answer(source, kind=None):
    """Run ``source`` with ``loader`` as a probe; return what the probe found."""
    name = f"<probe {abs(hash(source))}>"
    namespace = {"__name__": "__main__", "loader": (kind or Probe)()}
    text = HELPERS + textwrap.dedent(source)
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), namespace)
    return namespace["loader"].answer


TRAINING = {
    "plain": "for x in loader:\n    x.backward()",
    "optimizer step alone": "for x in loader:\n    opt.step()",
    "through functions": "for x in loader:\n    train_step(x)",
    "through a method": "for x in loader:\n    trainer.one(x)",
    "inside a method": "trainer.fit(loader)",
    "enumerate": "for i, x in enumerate(loader):\n    train_step(x)",
    "zip": "for a, b in zip(loader, [1]):\n    a.backward()",
    "tqdm": "for x in tqdm(loader, disable=True):\n    x.backward()",
    "comprehension": "losses = [train_step(x) for x in loader]",
    "deep in branches": "for x in loader:\n    if x:\n        while x:\n            x.backward()",
    "several lines": "for x in enumerate(\n    loader,\n    1,\n):\n    x.backward()",
}
NOT_TRAINING = {
    "mean": "for x in loader:\n    m = x.mean()",
    "no_grad inside": "for x in loader:\n    with torch.no_grad():\n        y = model(x)",
    "a function that only measures": "for x in loader:\n    measure(x)",
    "a method that only reads": "for x in loader:\n    trainer.look(x)",
    "comprehension": "m = [measure(x) for x in loader]",
    "generator": "m = sum(measure(x) for x in loader)",
    "one batch": "next(iter(loader), None)",
    "unknown object's method": "for x in loader:\n    x.add(1).sum().item()",
}


@pytest.mark.parametrize("source", TRAINING.values(), ids=TRAINING.keys())
def test_a_loop_that_reaches_backward_trains(source):
    assert answer(source) is True


@pytest.mark.parametrize("source", NOT_TRAINING.values(), ids=NOT_TRAINING.keys())
def test_a_loop_that_cannot_reach_backward_does_not(source):
    assert answer(source) is False


def test_a_bare_iterator_is_unknown():
    assert answer("it = iter(loader)") is None


def test_code_without_source_does_not_train():
    namespace = {"__name__": "__main__", "loader": Probe()}
    exec("for x in loader:\n    x.backward()", namespace)
    assert namespace["loader"].answer is False


class CycleProbe(Probe):
    """A loader that checks whether it is passed to ``itertools.cycle``."""

    def __iter__(self):
        self.answer = is_cycled(self, sys._getframe(1))
        return iter(())


@pytest.mark.parametrize(
    ("source", "cycled"),
    [
        ("import itertools\nfor x in itertools.cycle(loader): pass", True),
        ("from itertools import cycle as again\nfor i, x in zip([1], again(loader)): pass", True),
        ("import itertools\nbatches = iter(itertools.cycle(loader))", True),
        ("import itertools\nfor i, x in itertools.cycle(enumerate(loader)): pass", None),
        ("import itertools\nfor a, b in zip({1: loader}[1], itertools.cycle([1])): pass", False),
        ("import itertools\nfor a, b in zip(itertools.cycle(loader), loader): pass", None),
        ("import itertools\nboth = {1: loader}\nfor x in itertools.cycle(both[1]): pass", None),
        ("import itertools\nfor a, b in zip(loader, itertools.cycle(iter([1]))): pass", False),
        ("import itertools\nfor a, b in zip(loader, itertools.cycle([1])): pass", False),
        ("cycle = list\nfor x in cycle(loader): pass", False),
        ("import itertools\n[x for x in itertools.cycle(loader)]", True),
        (
            "import itertools, tqdm\nbar = tqdm.tqdm(loader, disable=True)\n"
            "for x in itertools.cycle(bar): pass",
            None,
        ),
        ("import itertools\n[x for x in zip(loader, itertools.cycle([1]))]", False),
    ],
)
def test_cycled_loaders_are_detected(source, cycled):
    assert answer(source, CycleProbe) is cycled
