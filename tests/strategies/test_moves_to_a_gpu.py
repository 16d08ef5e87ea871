"""``model.to(device)`` puts no whole model on the device of a rank that will hold a part of it.

The ranks of these tests have no GPU: strategies of another package take moves to ``cpu`` for those
to a GPU, and record every parameter that is copied whole.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from entry_points import installed
from idioms.comparison import Comparison, run_both

from nbmgpu import strategies

SOURCE = """
import dataclasses
from nbmgpu.strategies.fsdp.strategy import FullyShardedDataParallel
from nbmgpu.strategies.fsdp.tensor_parallel import FullyShardedTensorParallel
from nbmgpu.strategies.pp.strategy import PipelineParallel
from nbmgpu.strategies.sharding import host_parameters
from nbmgpu.strategies.tp.strategy import TensorParallel

copied = []
gather = host_parameters.WholeLayout.gather

def recorded(layout, part, device):
    copied.append(part.nbytes)
    return gather(layout, part, device)

host_parameters.WholeLayout.gather = recorded

def on_host(kind):
    profile = dataclasses.replace(kind.profile, name=kind.profile.name + "_on_host", aliases=())
    return type(kind.__name__, (kind,), {"profile": profile, "host_moves_to": "cpu"})

Tensor, Pipeline, Sharded, Both = map(on_host, (
    TensorParallel, PipelineParallel, FullyShardedDataParallel, FullyShardedTensorParallel))
"""
NAMES = {
    "tp_on_host": "Tensor", "pp_on_host": "Pipeline", "fsdp_on_host": "Sharded",
    "fsdp+tp_on_host": "Both",
}  # fmt: skip
RANKS = {"fsdp+tp_on_host": 4}

SETUP = """
import sys
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
    def forward(self, x):
        return x + self.fc2(F.gelu(self.fc1(self.norm(x))))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.start, self.blocks = nn.Linear(8, 16), nn.Sequential(*(Block() for _ in range(4)))
        self.head = nn.Linear(16, 4)
    def forward(self, x):
        return self.head(self.blocks(self.start(x)))
model = Net()
X, Y = torch.randn(22, 8), torch.randint(0, 4, (22,))
loader = DataLoader(TensorDataset(X, Y), 5)
losses, before = [], {}
def whole_copies():
    module = sys.modules.get("moves_on_host")
    return 0 if module is None else sum(module.copied)
"""
TRAIN = """
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    opt.step()
    losses.append(loss.item())
copies = whole_copies()
"""


@pytest.fixture(autouse=True, scope="module")
def _strategies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    site = tmp_path_factory.mktemp("site-packages")
    with installed(site, "moves_on_host", SOURCE, strategies.GROUP, NAMES):
        yield


def run(cell: str, strategy: str) -> Comparison:
    result = run_both(cell, SETUP, RANKS.get(strategy, 2), strategy=strategy)
    assert result.difference("model") < 1e-5
    assert result.difference("losses") < 1e-5
    return result


@pytest.mark.parametrize("strategy", NAMES)
def test_a_model_is_split_before_any_of_it_is_moved(strategy: str) -> None:
    result = run('model.to("cpu")\n' + TRAIN, strategy)
    assert result.ranks["copies"] == 0
    assert type(result.ranks["model"].head.weight) is torch.nn.Parameter


CHANGES = """
before.update({k: v.clone() for k, v in model.state_dict().items()})
model = model.to("cpu").double().float()
with torch.no_grad():
    model.head.weight.mul_(0.5)
    model.head.bias[0] = 1.0
model.start.requires_grad_(False)
start = model(X).detach()
start_loss = F.cross_entropy(model(X), Y)
start_loss.backward()
kept = model.state_dict()
"""


@pytest.mark.parametrize("strategy", ["tp_on_host", "pp_on_host", "fsdp_on_host"])
def test_parameters_are_used_and_changed_before_they_are_split(strategy: str) -> None:
    result = run(CHANGES + TRAIN, strategy)
    assert result.ranks["copies"] > 0
    torch.testing.assert_close(result.ranks["start"], result.alone["start"])
    for name in ("kept", "before"):
        assert result.difference(name) < 1e-5


INFERENCE = """
model.to("cpu").eval()
with torch.no_grad():
    start = model(X)
"""


def test_a_model_that_never_trains_computes_on_the_device() -> None:
    result = run(INFERENCE, "tp_on_host")
    torch.testing.assert_close(result.ranks["start"], result.alone["start"])
    assert type(result.ranks["model"].head.weight) is torch.nn.Parameter
