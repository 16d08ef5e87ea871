"""Ranks that hang: the run says which rank waits where, and why; ``--on-hang stop`` ends it."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import nbmgpu
from nbmgpu.errors import HangError, RankKilledError
from nbmgpu.report.failure_cause import cause
from nbmgpu.report.summary import summary_html, summary_text
from nbmgpu.runs.events import Hang
from nbmgpu.runs.run import Run
from nbmgpu.runs.run_list import list_runs
from nbmgpu.system.processes import process_is_alive

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("runs_folder")]

matrix = pytest.mark.matrix(
    "nbmgpu/engines", "nbmgpu/rank/hang_reports.py", "nbmgpu/runs/stacks.py"
)

LONGEST = 40.0
"""Seconds in which a run ends by itself."""

TRAIN = """\
import ctypes, os, re, signal, threading, time
import torch.distributed as dist
for x, y in loader:
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
rank = dist.get_rank()
"""


class NeverReady(Dataset):
    """A dataset whose workers never return a batch; ``how`` is what they do instead."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        import os
        import signal

        os.kill(os.getpid(), getattr(signal, self.how))
        return torch.zeros(4)


def notebook(**more: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(20, 4), torch.randint(0, 2, (20,))), batch_size=8)
    names = {"nn": nn, "model": model, "optimizer": optimizer, "loader": loader, "torch": torch}
    return names | more


def hangs(rest: str, names: dict[str, Any] | None = None, strategy: str = "ddp") -> tuple[Run, str]:
    """Run a cell that trains and then hangs in ``rest``; return the run and its error."""
    names = names or notebook()
    begun = time.monotonic()
    options = {"strategy": strategy, "on_hang": "stop", "hang_after": 2}
    with pytest.raises(HangError) as raised:
        nbmgpu.run(TRAIN + rest, names, gpus=2, cpu=True, **options)
    assert time.monotonic() - begun < LONGEST
    run = list_runs()[0]
    assert run.state == "failed"
    assert run.view.hang is not None
    assert len(run.view.hang.places) == 2
    for rank in run.view.ranks:
        assert rank.process is not None
        assert not process_is_alive(rank.process.pid, rank.process.create_time)
    shown = cause(run, run.state)
    assert shown is not None
    assert run.view.hang.cause in shown.error
    assert run.view.hang.cause in summary_text(run)
    return run, str(raised.value)


def test_a_sleeping_rank() -> None:
    names = notebook()
    before = names["model"].weight.detach().clone()
    _, error = hangs("if rank == 1:\n    time.sleep(100)\ndist.barrier()\n", names)
    assert "Rank 1 has not reached the barrier that rank 0 waits in: it sleeps" in error
    assert "Rank 1 sleeps, line 8 of the cell: time.sleep(100)" in error
    assert "line 9 of the cell: dist.barrier()" in error
    assert "what was trained so far is back in the notebook" in error
    assert not torch.equal(before, names["model"].weight)
    assert nbmgpu.run("6 * 7", names, gpus=2, cpu=True) is not None


def test_a_suspended_rank() -> None:
    rest = "if rank == 1:\n    while True:\n        if time.monotonic() > begun + 2:\n"
    rest += "            os.kill(os.getpid(), signal.SIGSTOP)\ndist.barrier()\n"
    rest = f"begun = time.monotonic()\n{rest}"
    run, error = hangs(rest)
    assert "Rank 1 is suspended: something has sent SIGSTOP" in error
    assert f"kill -CONT {run.view.ranks[1].process.pid}" in error
    assert re.search(r"Rank 1 is suspended .*, last seen at line (9|10) of the cell", error)


def test_a_rank_that_waits_for_parameters_of_another_one() -> None:
    rest = "if rank == 1:\n    time.sleep(100)\nmodel(torch.ones(1, 4))\n"
    _, error = hangs(rest, strategy="fsdp")
    assert "Rank 1 has not reached the all_gather that rank 0 waits in: it sleeps" in error
    assert "Rank 0 waits in all_gather of " in error


@matrix
def test_tensors_of_different_shapes() -> None:
    _, error = hangs("dist.all_reduce(torch.ones(5 * rank))\ndist.barrier()\n")
    assert "Ranks are in different collectives: all_reduce and barrier" in error
    assert "Rank 1 waits in all_reduce of (5,)" in error


@matrix
def test_more_data_than_a_rank_expects() -> None:
    rest = "parts = [torch.zeros(3 + rank), torch.zeros(3 + rank)]\n"
    rest += "dist.all_gather(parts, torch.ones(3 + rank))\n"
    with pytest.raises(RankKilledError, match="the same collective with tensors of different sha"):
        nbmgpu.run(TRAIN + rest, notebook(), gpus=2, cpu=True)


@matrix
def test_a_rank_in_compiled_code_that_keeps_the_lock() -> None:
    rest = "if rank == 1:\n    re.match('(a+)+$', 'a' * 40 + 'b')\ndist.barrier()\n"
    _, error = hangs(rest)
    assert "Rank 1 has not reached the barrier" in error
    assert "compiled code that keeps Python's interpreter lock" in error
    assert "line 8 of the cell: re.match" in error


@matrix
def test_a_rank_in_a_lock() -> None:
    _, error = hangs("lock = threading.Lock()\nlock.acquire()\nlock.acquire()\n")
    assert "waits for a lock" in error
    assert "Rank 0 waits for a lock, a thread or a process, line 9 of the cell" in error


@matrix
def test_a_different_number_of_steps() -> None:
    rest = "for _ in range(3 + rank):\n    dist.all_reduce(torch.ones(5))\n"
    rest += "if rank == 0:\n    time.sleep(100)\n"
    _, error = hangs(rest)
    assert "Rank 0 has not reached the all_reduce that rank 1 waits in: it sleeps" in error
    assert "Rank 1 waits in all_reduce of (5,)" in error


@matrix
def test_loader_workers_that_do_not_return_a_batch() -> None:
    data = DataLoader(NeverReady("SIGSTOP"), batch_size=4, num_workers=1)
    _, error = hangs("for x in data:\n    pass\n", notebook(data=data, NeverReady=NeverReady))
    assert "DataLoader worker" in error


@matrix
def test_a_killed_loader_worker() -> None:
    data = DataLoader(NeverReady("SIGKILL"), batch_size=4, num_workers=1)
    names = notebook(data=data, NeverReady=NeverReady)
    with pytest.raises(RuntimeError, match="DataLoader worker"):  # torch's own: it does not hang
        nbmgpu.run(TRAIN + "for x in data:\n    pass\n", names, gpus=2, cpu=True, hang_after=2)


def test_a_warning_ends_when_there_is_progress(capsys: pytest.CaptureFixture[str]) -> None:
    rest = "if rank == 1:\n    time.sleep(7)\ndist.barrier()\nprint('after')\ntime.sleep(2)\n"
    run = nbmgpu.run(TRAIN + rest, notebook(), gpus=2, cpu=True, hang_after=2)
    assert run is not None
    assert run.state == "finished"
    events = [event for event in Run(run.folder).poll() if isinstance(event, Hang)]
    assert [event.over for event in events] == [False, True]
    assert "it sleeps" in events[0].cause
    shown = capsys.readouterr().out
    assert shown.index("it sleeps") < shown.index("There is progress again.")
    assert run.view.hang is None
    assert "it sleeps" not in summary_html(run)


@matrix
def test_a_rank_that_computes_is_not_stopped() -> None:
    rest = "end = time.monotonic() + 6\nwhile rank == 1 and time.monotonic() < end: pass\n"
    options = {"on_hang": "stop", "hang_after": 2}
    run = nbmgpu.run(TRAIN + rest + "dist.barrier()\n", notebook(), gpus=2, cpu=True, **options)
    assert run is not None
    assert run.state == "finished"
