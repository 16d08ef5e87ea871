"""--tp-plan: the user's plan, and blocks that a trial finds."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from idioms.comparison import Comparison, compare
from idioms.idiom import TRAIN, idiom
from idioms.notebook import notebook
from matrix_selection import sampled

import nbmgpu
from nbmgpu.errors import OptionError, StrategyError

MLP = """
class Mlp(nn.Module):
    def __init__(self, p=0.0):
        super().__init__()
        self.emb = nn.Linear(8, 8)
        self.fc1, self.fc2, self.norm = nn.Linear(8, 12), nn.Linear(12, 8), nn.LayerNorm(8)
        self.scale = nn.Parameter(torch.ones(()))
        self.head = nn.Linear(8, 4)
    def forward(self, x):
        x = self.emb(x)
        return self.head(self.norm(x + self.fc2(BETWEEN)))
model = Mlp()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""
HIDDEN = "torch.relu(self.fc1(x))"
PLAN = """
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
plan = {"fc1": "colwise", "fc2": "rowwise", "head": "replicate"}
of_torch = {"fc1": ColwiseParallel(), "fc*": RowwiseParallel()}
"""


def train(between: str = HIDDEN, ranks: int = 2, **options: Any) -> Comparison:
    """Train the MLP with ``between`` before its second layer; return the comparison."""
    case = idiom("mlp", TRAIN, setup=MLP.replace("BETWEEN", between) + PLAN, rtol=5e-5)
    result = compare(case, ranks, **{"strategy": "tp", **options})
    result.assert_equal()
    return result


def held(result: Comparison) -> dict[str, float]:
    """Return the share of each layer that rank 0 holds."""
    table = result.run.shards
    assert table is not None
    return {row.name: row.stored[0] / row.elements for row in table.rows}


@pytest.mark.parametrize("plan", ["plan", "of_torch", "fc1=colwise,fc2=rowwise", "*fc*=colwise"])
def test_only_the_layers_of_a_plan_are_split(plan: str) -> None:
    shares = held(train(tp_plan=plan))
    assert shares["fc1"] == 0.5
    assert shares["fc2"] < 0.6
    assert shares["head"] == shares["emb"] == 1.0


def test_auto_splits_all_layers_that_can_be() -> None:
    shares = held(train(tp_plan="auto"))
    assert max(shares["head"], shares["emb"]) < 0.6


def test_parts_of_a_plan_are_sharded() -> None:
    shares = held(train(ranks=4, strategy="fsdp+tp", tp_plan="plan"))
    assert shares["fc1"] == 0.25
    assert shares["head"] == 0.5


BETWEEN = [
    HIDDEN,
    "torch.softmax(self.fc1(x), -1)",  # features depend on each other
    "F.dropout(self.fc1(x), 0.5, self.training)",  # random numbers depend on the shape
    "self.scale * self.fc1(x)",  # a gradient from all features
    "self.fc1(x).view(-1, 3, 4).flatten(1)",  # the number of features is in the code
    "self.fc1(x) * torch.arange(12)",
]
"""What is computed between two layers."""


@pytest.mark.parametrize(
    ("between", "plan"),
    sampled(itertools.product(BETWEEN, ("plan", "auto")), 2, "nbmgpu/strategies/tp"),
)
def test_activations_stay_split_only_where_that_is_exact(between: str, plan: str) -> None:
    train(between, tp_plan=plan)


ZERO = """
nn.init.zeros_(model.fc2.weight)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""


@pytest.mark.parametrize("plan", ["auto", "plan"])
def test_a_layer_that_begins_at_zero_hides_nothing(plan: str) -> None:
    """Its input has no gradient at the trial: neither has a factor of all features."""
    setup = MLP.replace("BETWEEN", "self.scale * torch.relu(self.fc1(x))") + ZERO + PLAN
    result = compare(
        idiom("mlp", TRAIN * 2, setup=setup, rtol=5e-5), 2, strategy="tp", tp_plan=plan
    )
    result.assert_equal()


COLLECTIVES = """
import nbmgpu.strategies.sharding.tensor_shard as shards
gathers, plain = [], shards.all_gather
shards.all_gather = lambda *a, **k: (gathers.append(1), plain(*a, **k))[1]
"""


def test_an_mlp_needs_no_gather_between_its_layers() -> None:
    gathers = {}
    for between in (HIDDEN, "torch.softmax(self.fc1(x), -1)"):
        setup = MLP.replace("BETWEEN", between).replace("self.emb(x)", "x")
        names = notebook(setup.replace("self.head(self.norm(x + ", "(self.norm(x + ") + PLAN)
        run = nbmgpu.run(COLLECTIVES + TRAIN + "count = len(gathers)", names, strategy="tp",
                         gpus=2, cpu=True, tp_plan="plan")  # fmt: skip
        gathers[between] = run.results[0]["count"]
    assert gathers[HIDDEN] < 12 < gathers["torch.softmax(self.fc1(x), -1)"]


@pytest.mark.parametrize(
    ("plan", "error", "text"),
    [
        ("fc9=colwise", StrategyError, "no layer is called fc9.*--tp-plan fc[12]=colwise"),
        ("norm=colwise", StrategyError, "norm, a LayerNorm, cannot be colwise.*norm=replicate"),
        ("fc1=sideways", OptionError, "fc1=sideways is not how.*fc1=colwise"),
        ("norm=sequence", OptionError, "by --sequence-parallel"),
        ("absent", OptionError, "absent: no such variable.*--strategy tp"),
        ("model", OptionError, "it is a Mlp"),
    ],
)
def test_plans_that_cannot_be(plan: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"(?s){text}"):
        train(tp_plan=plan)


def test_other_strategies_have_no_plan() -> None:
    with pytest.raises(OptionError, match="only tp splits layers"):
        train(strategy="ddp", tp_plan="fc1=colwise")
