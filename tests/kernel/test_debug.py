"""``%mgpu debug``: the debugger in the frames of a rank that has failed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kernels import ANSI, ExecutedCell, Notebook, notebook_in

MODEL = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        hidden = x * 2
        return self.layer(hidden[:, :3])

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = torch.arange(16.0).reshape(4, 4)
"""

CELL = """%%mgpu --gpus 2 --strategy none
rank = dist.get_rank()
large = torch.zeros(20_000_000)
unsavable = (number for number in range(3))
net.layer.weight.grad = torch.full((2, 4), 5.0)
for step in range(3):
    part = data[rank:]
    net(part)
"""


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Notebook, str]]:
    """A notebook of its own with a run that has failed, and what it showed."""
    with notebook_in(tmp_path_factory.mktemp("debug")) as notebook:
        notebook.load()
        notebook.run("import torch, torch.nn as nn, torch.distributed as dist" + MODEL)
        yield notebook, notebook.send(CELL).fails("RuntimeError")


def answered(cell: ExecutedCell, *answers: str) -> str:
    """Answer each prompt of the debugger; return what it has printed after each, as plain text."""
    client = cell.notebook.client
    for answer in answers:
        prompt = client.get_stdin_msg(timeout=30)["content"]["prompt"]
        assert prompt == "ipdb> "
        client.input(answer)
    return ANSI.sub("", cell.ok().text())


def test_the_debugger_opens_where_the_exception_was_raised(failed: tuple[Notebook, str]) -> None:
    notebook, shown = failed
    assert "What its variables were: %mgpu debug" in shown
    text = answered(
        notebook.send("%mgpu debug"),
        "p 'input', input.shape", "up", "p 'hidden', hidden.sum().item(), self.layer.weight.shape",
        "up", "p 'cell', step, len(part) == 4 - rank, net.layer.weight.grad.max().item()",
        "p large, unsavable", "p 'again', net.layer(data).shape", "ll", "q",
    )  # fmt: skip
    assert "raised RuntimeError: mat1 and mat2 shapes cannot be multiplied" in text
    assert "-> " in text
    assert "F.linear(input, self.weight, self.bias)" in text
    assert "('input', torch.Size([" in text
    assert "return self.layer(hidden[:, :3])" in text
    assert "('hidden', " in text
    assert "('cell', 0, True, 5.0)" in text
    assert "<not saved: Tensor, float32, shape (20000000,), on cpu: too large>" in text
    assert "<not saved: generator: TypeError" in text
    assert "('again', torch.Size([4, 2]))" in text
    assert "8     net(part)" in text  # the whole cell
    assert notebook.value("len(data)") == 4  # the notebook's own


def test_another_rank_is_opened_by_its_number(failed: tuple[Notebook, str]) -> None:
    notebook, _ = failed
    for rank in (0, 1):
        cell = notebook.send(f"%mgpu debug --rank {rank}")
        text = answered(cell, "up", "up", "p 'part', len(part)", "q")
        assert f"Rank {rank} of 2" in text
        assert f"('part', {4 - rank})" in text


def test_without_input_the_variables_are_printed(failed: tuple[Notebook, str]) -> None:
    notebook, _ = failed
    before = notebook.client.allow_stdin
    notebook.client.allow_stdin = False
    try:
        text = notebook.run("%mgpu debug --rank 1").text()
    finally:
        notebook.client.allow_stdin = before
    assert "line 8, in <module>" in text
    assert "  rank = 1" in text
    assert "_call_impl" not in text


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ("--rank 7", "Ranks that raised an exception: 0, 1"),
        ("--rank first", "%mgpu debug --rank 1"),
        ("--frames", r"%mgpu debug [RUN] [--rank N]"),
        ("nowhere", "There is no run 'nowhere'"),
    ],
)
def test_what_does_not_exist_is_said(failed: tuple[Notebook, str], rest: str, words: str) -> None:
    notebook, _ = failed
    assert words in notebook.send(f"%mgpu debug {rest}").fails("OptionError")


def test_a_run_without_an_exception_has_no_variables(tmp_path: Path) -> None:
    with notebook_in(tmp_path) as notebook:
        notebook.load()
        shown = notebook.send("%mgpu debug").fails("OptionError")
        assert "which is finished" in shown
