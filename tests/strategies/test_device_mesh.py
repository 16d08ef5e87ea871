"""A mesh of 2 x 2 ranks, whose second dimension replicates: the numbers of one device on all four.

Samples are split, gradients averaged and random numbers drawn by the rank along ``dp``.  Whatever
takes all ranks for data-parallel ones counts samples twice here, or gives replicas other ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from entry_points import installed
from idioms.comparison import assert_equal, run_both
from idioms.idiom import TRAIN, Idiom, idiom
from idioms.notebook import notebook
from idioms.sources import BATCH_NORM, with_loss
from idioms.tables import BY_NAME
from matrix_selection import sampled
from torch.utils.data import DataLoader

import nbmgpu
from nbmgpu import strategies
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
    with installed(site, "mesh_strategies", SOURCE, strategies.GROUP, NAMES):
        yield


ADAM = "opt = torch.optim.Adam(model.parameters(), lr=1e-2)\n"
SHUFFLED = "loader = DataLoader(dataset, batch_size=7, shuffle=True)\n" + ADAM

OWN = [
    idiom("shuffled, uneven batches", setup=SHUFFLED),
    idiom("a batch smaller than the number of shards", setup="""
loader = DataLoader(TensorDataset(X[:13], Y[:13]), batch_size=6, shuffle=True)
"""),
    idiom("a sum divided by the size of the batch", with_loss(
        "F.cross_entropy(model(x), y, reduction='sum') / len(x)"), setup=SHUFFLED),
    idiom("ignored targets", with_loss(
        "F.cross_entropy(model(x), y, ignore_index=1)"), setup=SHUFFLED),
    idiom("a generator without a seed", """
order = np.random.default_rng().permutation(44)
same = DataLoader(Subset(dataset, order[:30].tolist()), batch_size=5)
count = 0
for x, y in same:
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
    count += 1
""", rank_local="order same x y model opt", curve=False),
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
]  # fmt: skip

OTHERS = [
    BY_NAME[name] for name in (
        "two workers", "IterableDataset", "a last batch of one sample", "a sum",
        "a sum / the number of chosen samples", "ignore_index, a rank without targets",
        "two backwards, one step", "an L2 penalty on parameters", "LBFGS on the whole data",
    )
]  # fmt: skip

EXERCISED = ("nbmgpu/strategies", "nbmgpu/rank")

PAIRS = [
    *sampled((("replicated", case) for case in OWN), 1),
    *sampled((("replicated", case) for case in OTHERS), 5, *EXERCISED),
    *sampled((("replicated_zero1", case) for case in OWN + OTHERS[:-1]), 9, *EXERCISED),
]
"""zero1 refuses LBFGS, the last one."""


@pytest.mark.parametrize(("strategy", "case"), PAIRS)
def test_four_ranks_have_the_numbers_of_one_device(strategy: str, case: Idiom) -> None:
    result = assert_equal(case, 4, strategy=strategy)
    assert result.split() == case.split
    assert result.error <= (1e-5 if case.name == "a sum" else 1e-6)  # a sum is about 10
    assert result.notices == case.notices
    digests = {each.step_digest.weights for each in result.run.view.ranks if each.step_digest}
    assert len(digests) == 1


def test_a_mesh_with_one_shard_trains_on_whole_batches() -> None:
    case = idiom("one shard", setup=SHUFFLED)
    assert_equal(case, strategy="one_shard")


EVEN = "loader = DataLoader(dataset, batch_size=7, shuffle=True, drop_last=True)\n"


@pytest.mark.parametrize("options", [{"sync_batchnorm": True}, {"bucket_views": True}], ids=str)
def test_options(options: dict[str, bool]) -> None:
    setup = BATCH_NORM + EVEN if "sync_batchnorm" in options else SHUFFLED
    assert_equal(idiom("an option", setup=setup), 4, strategy="replicated", **options)


def test_gradients_accumulate_over_batches() -> None:
    cell = "for x, y in loader:\n    opt.zero_grad()\n    F.cross_entropy(model(x), y).backward()\n"
    cell += "    opt.step()\n"
    smaller, larger = (f"loader = DataLoader(dataset, batch_size={n})" for n in (11, 22))
    result = run_both(cell, smaller, 4, alone=(cell, larger), strategy="replicated", accumulate=2)
    assert result.difference() <= 1e-6


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
def test_a_mesh_of_one_dimension_creates_no_process_group(strategy: str) -> None:
    names = notebook()
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
