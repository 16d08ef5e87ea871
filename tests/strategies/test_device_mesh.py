"""A mesh of 2 x 2 ranks, whose second dimension replicates: the numbers of one device on all four.

Samples are split, gradients averaged and random numbers drawn by the rank along ``dp``.  Whatever
takes all ranks for data-parallel ones counts samples twice here, or gives replicas other ones.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator

import pytest
from idiom import TRAIN, Idiom, compare, idiom, notebook
from installed import installed
from torch.utils.data import DataLoader

import nbmgpu
from nbmgpu.errors import StrategyError
from nbmgpu.kernel.batch_size import batch_line
from nbmgpu.options.run_options import RunOptions

# torch.distributed.optim compiles functions when it is imported, here by the kernel.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

SOURCE = """
from dataclasses import replace

from nbmgpu.strategies.ddp import DistributedDataParallel
from nbmgpu.strategies.profiles import DDP, ZERO1
from nbmgpu.strategies.zero1 import ZeroStage1


class Replicated(DistributedDataParallel):
    profile = replace(DDP, name="replicated", aliases=())

    @classmethod
    def mesh_shape(cls, world_size, options):
        return {"dp": world_size // 2, "tp": 2}


class ReplicatedZero(ZeroStage1):
    profile = replace(ZERO1, name="replicated_zero1", aliases=())

    @classmethod
    def mesh_shape(cls, world_size, options):
        return {"tp": 2, "dp": world_size // 2}


class OneShard(DistributedDataParallel):
    profile = replace(DDP, name="one_shard", aliases=())

    @classmethod
    def mesh_shape(cls, world_size, options):
        return {"tp": world_size}
"""

NAMES = {
    "replicated": "Replicated",
    "replicated_zero1": "ReplicatedZero",
    "one_shard": "OneShard",
}


@pytest.fixture(autouse=True, scope="module")
def _strategies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    site = tmp_path_factory.mktemp("site-packages")
    with installed(site, "mesh_strategies", SOURCE, NAMES):
        yield


def tables(*names: str) -> dict[str, Idiom]:
    found = itertools.chain.from_iterable(importlib.import_module(n).IDIOMS for n in names)
    return {each.name: each for each in found}


KNOWN = tables("cells_loaders", "cells_losses", "cells_optimizers", "cells_models")
ADAM = "opt = torch.optim.Adam(model.parameters(), lr=1e-2)\n"
SHUFFLED = "loader = DataLoader(dataset, batch_size=7, shuffle=True)\n" + ADAM

IDIOMS = [
    idiom("shuffled, uneven batches", setup=SHUFFLED),
    idiom("a batch smaller than the number of shards", setup="""
loader = DataLoader(TensorDataset(X[:13], Y[:13]), batch_size=6, shuffle=True)
"""),
    idiom("a sum divided by the size of the batch", """
for x, y in loader:
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y, reduction="sum") / len(x)
    loss.backward()
    opt.step()
    losses.append(loss.item())
""", setup=SHUFFLED),
    idiom("targets that are ignored", """
for x, y in loader:
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y, ignore_index=1)
    loss.backward()
    opt.step()
    losses.append(loss.item())
""", setup=SHUFFLED),
    idiom("a generator without a seed", """
order = np.random.default_rng().permutation(44)
same = DataLoader(Subset(dataset, order[:30].tolist()), batch_size=5)
count = 0
for x, y in same:
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
    count += 1
""", shares="order same model opt", curve=False),
    idiom("two units", """
for x, y in loader:
    opt.zero_grad(); other_opt.zero_grad()
    loss = F.cross_entropy(model(x), y) + F.cross_entropy(other(x), y)
    loss.backward()
    opt.step(); other_opt.step()
    losses.append(loss.item())
""", setup="""
other = Net()
other_opt = torch.optim.Adam(other.parameters(), lr=1e-2)
"""),
    *(KNOWN[name] for name in (
        "two workers", "IterableDataset", "a last batch of one sample", "a sum",
        "a sum / the number of chosen samples", "ignore_index, a rank with none left",
        "two backwards, one step", "an L2 penalty on parameters", "LBFGS on the whole data",
    )),
]  # fmt: skip


PAIRS = [
    pytest.param(strategy, case, id=f"{strategy}: {case}")
    for strategy, case in itertools.product(("replicated", "replicated_zero1"), IDIOMS)
    if not ("zero1" in strategy and "LBFGS" in case.name)  # which zero1 refuses
]


@pytest.mark.parametrize(("strategy", "case"), PAIRS)
def test_four_ranks_leave_what_one_device_leaves(strategy: str, case: Idiom) -> None:
    result = compare(case, 4, strategy=strategy)
    assert not result.wrong, "\n".join(result.wrong)
    assert result.split() == case.split
    assert result.error <= (1e-5 if case.name == "a sum" else 1e-6)  # a sum is about 10
    assert result.notices - {"rank-0-values"} == case.notices
    digests = {each.step_digest.weights for each in result.run.view.ranks if each.step_digest}
    assert len(digests) == 1


def test_a_mesh_with_one_shard_trains_on_whole_batches() -> None:
    case = idiom("one shard", setup=SHUFFLED)
    result = compare(case, 2, strategy="one_shard")
    assert not result.wrong, "\n".join(result.wrong)


BATCH_NORM = """
model = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(dataset, batch_size=7, shuffle=True, drop_last=True)
"""


@pytest.mark.parametrize("options", [{"sync_batchnorm": True}, {"bucket_views": True}], ids=str)
def test_options(options: dict[str, bool]) -> None:
    setup = BATCH_NORM if "sync_batchnorm" in options else SHUFFLED
    result = compare(idiom("an option", setup=setup), 4, strategy="replicated", **options)
    assert not result.wrong, "\n".join(result.wrong)


def test_gradients_accumulate_over_batches() -> None:
    cell = "for x, y in loader:\n    opt.zero_grad()\n    F.cross_entropy(model(x), y).backward()\n"
    cell += "    opt.step()\n"
    alone, shared = notebook("loader = DataLoader(dataset, batch_size=22)"), notebook("")
    exec("loader = DataLoader(dataset, batch_size=11)", shared)
    exec(cell, alone)
    nbmgpu.run(cell, shared, gpus=4, cpu=True, strategy="replicated", accumulate=2)
    for mine, theirs in zip(shared["model"].parameters(), alone["model"].parameters(), strict=True):
        assert (mine - theirs).abs().max() <= 1e-6


DRAWS = """
seen = []
for x, y in loader:
    noise = torch.rand(2).tolist()
    unseeded = float(np.random.default_rng().random())
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
    seen.append((x.sum().item(), *noise, unseeded))
"""


def test_replicas_see_the_same_samples_and_draw_the_same_numbers() -> None:
    setup = "loader = DataLoader(dataset, batch_size=11, shuffle=True)"
    run = nbmgpu.run(DRAWS, notebook(setup), gpus=4, cpu=True, strategy="replicated")
    assert run is not None
    seen = [run.results[rank]["seen"] for rank in range(4)]
    assert seen[0] == seen[1]
    assert seen[2] == seen[3]
    assert not set(itertools.chain(*seen[0])) & set(itertools.chain(*seen[2]))


def test_a_batch_per_rank_is_one_per_shard() -> None:
    names = notebook("loader = DataLoader(dataset, batch_size=11)")
    cell = TRAIN.replace("range(2)", "range(1)") + "length = len(loader)\n"
    run = nbmgpu.run(cell, names, gpus=4, cpu=True, strategy="replicated", batch="per-rank")
    assert run is not None
    assert names["length"] == 2
    assert len(names["losses"]) == 2


FIND_MESH = (
    TRAIN
    + """
import gc
from torch.distributed.device_mesh import DeviceMesh
built = any(isinstance(each, DeviceMesh) for each in gc.get_objects())
groups = len(torch.distributed.distributed_c10d._world.pg_map)
"""
)


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_a_mesh_of_one_dimension_takes_no_time_and_no_process_group(strategy: str) -> None:
    names = notebook("")
    nbmgpu.run(FIND_MESH, names, gpus=2, cpu=True, strategy=strategy)
    assert not names["built"]
    assert names["groups"] == 1


def test_the_batch_is_described_by_its_shards() -> None:
    options = RunOptions.parse("--strategy replicated")
    loader = DataLoader(range(44), batch_size=8)
    assert batch_line([loader], options, 4) == "global batch 8 = 2 shards x 4"


def test_a_mesh_that_does_not_fit_is_refused() -> None:
    with pytest.raises(StrategyError, match="dp=1 x tp=2, does not have the run's 3 ranks"):
        nbmgpu.run("pass", {}, gpus=3, cpu=True, strategy="replicated")
