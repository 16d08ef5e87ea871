"""Reports of real runs: a suspended rank, and different numbers of steps."""

import os
import signal
import time

import pytest
import torch

import nbmgpu
from nbmgpu.report.failure_cause import cause
from nbmgpu.report.log_pages import ALL, LogRequest
from nbmgpu.report.snapshot import Snapshot

CELL = """
import os, sys, time
for epoch in range(400):
    for x, in loader:
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        time.sleep(0.02)
    print("rank", os.environ["RANK"], "epoch", epoch)
    print("careful", file=sys.stderr)
"""


def silent(parts):
    """Return the ranks that are reported as silent."""
    return [row["rank"] for row in parts["ranks"] if row["warning"].startswith("silent for")]


def wait_for(run, snapshot, condition, seconds=120):
    """Poll until ``condition`` is true for the snapshot's parts; return them.

    On a busy machine any rank may pause for as long as a suspended one: a state must be reached,
    not be there at the first look.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        run.poll()
        parts = snapshot.whole()
        if condition(parts):
            return parts
        time.sleep(0.2)
    pytest.fail(f"after {seconds} s: {parts['status']}, {parts['ranks']}")


def test_a_suspended_rank_is_reported_until_it_continues(monkeypatch, tmp_path):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    model = torch.nn.Linear(4, 1)
    data = torch.utils.data.TensorDataset(torch.randn(80, 4))
    namespace = {
        "__name__": "__main__",
        "model": model,
        "opt": torch.optim.SGD(model.parameters(), 0.1),
        "loader": torch.utils.data.DataLoader(data, batch_size=4),
    }
    run = nbmgpu.run(CELL, namespace, gpus=2, background=True)
    snapshot = Snapshot(run)
    try:
        running = wait_for(
            run, snapshot, lambda p: all(row["step"] > 40 for row in p["ranks"]) and not silent(p)
        )
        assert "left" in running["status"]["remaining"]
        assert running["progress"][0]["label"].endswith("of 400")
        os.kill(run.view.ranks[1].process.pid, signal.SIGSTOP)
        wait_for(run, snapshot, lambda p: silent(p) == [1])
        os.kill(run.view.ranks[1].process.pid, signal.SIGCONT)
        wait_for(run, snapshot, lambda p: silent(p) == [])
        page = snapshot.logs.page(LogRequest(ALL, 0, 100))
        assert {line.rank for line in page.lines} == {0, 1}
        assert {line.text for line in page.lines if line.stderr} == {"careful"}
    finally:
        run.stop()
        with pytest.raises(KeyboardInterrupt):
            nbmgpu.attach(run.id)
    over = Snapshot(run).whole()
    assert over["status"]["over"]
    assert silent(over) == []


@pytest.mark.parametrize("fresh", [False, True], ids=["shared memory", "gloo"])
def test_the_cause_of_different_numbers_of_steps(monkeypatch, tmp_path, fresh):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    model = torch.nn.Linear(4, 1)
    x = torch.arange(32.0).reshape(8, 4)
    namespace = {
        "model": model,
        "opt": torch.optim.SGD(model.parameters(), 1e-3),
        "loader": torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=4),
    }
    cell = (
        "for x, in loader:\n"
        "    if x[0, 0] == 8: continue\n"  # on rank 1 only
        "    model(x).mean().backward()\n"
        "    opt.step()"
    )
    with pytest.raises(RuntimeError):
        nbmgpu.run(cell, namespace, gpus=2, fresh=fresh, exact="never")
    why = cause(nbmgpu.last_run, nbmgpu.last_run.state)
    assert why.origin == "rank 0"
    assert why.number == 3
    text = why.explanation if fresh else why.error.removeprefix("RankError: ")
    assert text.startswith("Rank 1 had finished the cell while rank 0 was still waiting")
