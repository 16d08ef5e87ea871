"""What ranks report of the parameters that they store: each strategy's own split."""

from __future__ import annotations

import pytest
import torch
from idioms.notebook import notebook

import nbmgpu
from nbmgpu.runs.event_file import EventTail
from nbmgpu.runs.events import ParameterShards

MODEL = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(8, 6)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 4)
        self.tied = self.stem
    def forward(self, x):
        x = self.tied(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))
torch.manual_seed(0)
model = Net()
opt = torch.optim.Adam(model.parameters())
"""
CELL = """
for x, y in loader:
    opt.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
"""
WITHOUT_LOADER = """
for _ in range(2):
    loss = nn.functional.cross_entropy(model(X[:8]), Y[:8])
    loss.backward()
    opt.step()
"""
SIZES = {"stem": 54, **{f"layers.{i}": 42 for i in range(4)}, "norm": 12, "head": 28}
HALVES = {name: [size // 2] * 2 for name, size in SIZES.items()}
WHOLE_NORM = {"norm": [12, 12]}
OWNED = {f"layers.{i}": [42, 0] if i < 2 else [0, 42] for i in range(4)}

STORED = {
    "fsdp": HALVES,
    "zero2": HALVES,
    "tp": HALVES | WHOLE_NORM,
    "pp": HALVES | WHOLE_NORM | OWNED,
    "deepspeed_stage_3": HALVES,
}
"""Elements of each layer on two ranks."""


def stored(run: nbmgpu.Run) -> dict[str, list[int]]:
    """Return the elements of each layer on each rank."""
    assert {row.name: row.elements for row in run.shards.rows} in (SIZES, {})
    return {row.name: row.stored for row in run.shards.rows}


def reports(run: nbmgpu.Run, rank: int = 0) -> list[ParameterShards]:
    events = EventTail(run.events_path(f"rank-{rank}")).read()
    return [event for event in events if isinstance(event, ParameterShards)]


@pytest.mark.parametrize("strategy", STORED)
def test_each_rank_reports_once_what_it_stores(strategy: str) -> None:
    run = nbmgpu.run(CELL, notebook(MODEL), gpus=2, cpu=True, strategy=strategy)
    assert stored(run) == STORED[strategy]
    assert run.shards.total.nbytes == [4 * s for s in run.shards.total.stored]
    assert [len(reports(run, rank)) for rank in range(2)] == [1, 1]


@pytest.mark.parametrize("strategy", ["fsdp", "tp", "pp"])
def test_a_model_that_is_sharded_after_its_first_step_is_reported_again(strategy: str) -> None:
    # Its first forward pass has run when the first backward pass shows what trains.
    run = nbmgpu.run(WITHOUT_LOADER, notebook(MODEL), gpus=2, cpu=True, strategy=strategy)
    first, last = reports(run)
    assert first.stored == first.elements
    assert last.stored != last.elements
    assert stored(run) == STORED[strategy]


def test_positions_and_replicas_of_shards() -> None:
    mesh = {"mesh": ("dp=2", "fsdp=2")}
    run = nbmgpu.run(CELL, notebook(MODEL), gpus=4, cpu=True, strategy="hsdp", **mesh)
    assert run.shards.ranks == ["dp 0 fsdp 0", "dp 0 fsdp 1", "dp 1 fsdp 0", "dp 1 fsdp 1"]
    assert stored(run) == {name: halves * 2 for name, halves in HALVES.items()}


def test_rows_that_do_not_divide_evenly() -> None:
    cell = "model = nn.Linear(8, 3)\nopt = torch.optim.SGD(model.parameters())\n" + CELL
    cell = cell.replace("cross_entropy(model(x), y)", "mse_loss(model(x), x[:, :3])")
    run = nbmgpu.run(cell, notebook(), gpus=2, cpu=True, strategy="fsdp")
    assert [(row.name, row.stored) for row in run.shards.rows] == [("Linear", [18, 9])]


def test_half_precision_counts_with_its_own_size() -> None:
    namespace = notebook(MODEL)
    namespace["model"].to(torch.bfloat16)
    cell = CELL.replace("model(x)", "model(x.bfloat16())")
    run = nbmgpu.run(cell, namespace, gpus=2, cpu=True, strategy="fsdp")
    assert run.shards.total.nbytes == [2 * n for n in run.shards.total.stored]


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_strategies_whose_ranks_store_all_parameters_report_nothing(strategy: str) -> None:
    run = nbmgpu.run(CELL, notebook(MODEL), gpus=2, cpu=True, strategy=strategy)
    assert reports(run) == run.shards.rows == []


def test_a_single_rank_reports_nothing() -> None:
    run = nbmgpu.run(CELL, notebook(MODEL), gpus=1, cpu=True, strategy="fsdp")
    assert reports(run) == []
