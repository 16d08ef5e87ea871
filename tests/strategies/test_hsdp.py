"""hsdp: shards in groups of two ranks, and two replicas; the numbers of one device on all four."""

from __future__ import annotations

import pytest
from idioms.comparison import compare
from idioms.idiom import TRAIN, Idiom, idiom
from idioms.notebook import notebook
from idioms.sources import ADAM, BLOCKS, before_step
from matrix_selection import sampled
from test_every_idiom import DEMANDING, exceptions

import nbmgpu
from nbmgpu.errors import OptionError
from nbmgpu.kernel.batch_size import batch_line
from nbmgpu.options.run_options import RunOptions

ODD_SHAPES = """
X = torch.randn(44, 3, 6, 6)
loader = DataLoader(TensorDataset(X, Y), batch_size=8)
model = nn.Sequential(nn.Conv2d(3, 1, 3), nn.ReLU(), nn.Conv2d(1, 5, 3), nn.Flatten(),
                      nn.Linear(20, 7), nn.Tanh(), nn.Linear(7, 4))
"""

CASES = [
    idiom("blocks, clipped", before_step(
        "losses.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05).item())"),
        setup=BLOCKS + "opt = torch.optim.SGD(model.parameters(), lr=0.1)\n", curve=False),
    idiom("a penalty on parameters", TRAIN.replace(
        "model(x), y)", "model(x), y) + 0.01 * sum(p.square().sum() for p in model.parameters())"),
        setup=BLOCKS),
    idiom("rows that a group does not divide", setup=ODD_SHAPES + ADAM),
    idiom("batches smaller than the number of ranks",
        setup=BLOCKS + "loader = DataLoader(TensorDataset(X, Y), batch_size=3)\n"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_replicas_of_shards(case: Idiom) -> None:
    compare(case, 4, strategy="hsdp").assert_equal()


def test_three_replicas_by_the_mesh_of_fsdp() -> None:
    compare(CASES[0], 6, strategy="fsdp", mesh="dp=3,fsdp=2").assert_equal()


def test_the_mesh_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    nbmgpu.run("value = 1", {}, strategy="hsdp", gpus=4)
    assert "hsdp on 4 ranks (cpu), dp=2 x fsdp=2" in capsys.readouterr().out


def test_every_rank_has_a_shard_of_its_own_batch() -> None:
    options = RunOptions.parse("--strategy hsdp --gpus 4 --mesh dp=2,fsdp=2")
    loader = notebook()["loader"]
    assert batch_line([loader], options, 4) == "global batch 8 = 4 ranks x 2"


def test_a_mesh_of_another_size() -> None:
    with pytest.raises(OptionError, match=r"Try: %%mgpu --strategy hsdp --mesh dp=2,fsdp=2"):
        nbmgpu.run("1", {}, strategy="hsdp", gpus=4, mesh="dp=2,fsdp=3")


@pytest.mark.parametrize(
    "case", sampled(((i,) for i in DEMANDING), 61, "nbmgpu/strategies/fsdp", "tests/idioms")
)
def test_idioms_of_the_numeric_suite(case: Idiom) -> None:
    if case.name in exceptions("fsdp"):
        pytest.skip("an exception of fsdp")
    result = compare(case, 4, strategy="hsdp")
    result.assert_equal()
    assert case.notices <= result.notices
