"""fsdp+tp: layers split over two ranks, and parts sharded over two; the numbers of one device."""

from __future__ import annotations

import pytest
from idioms.comparison import compare, run_both
from idioms.idiom import TRAIN, Idiom, idiom
from idioms.model_parallelism import HELD, MODELS, TEXTS, TRAIN_MODEL, WIDE
from idioms.notebook import notebook
from idioms.sources import BLOCKS, before_step
from matrix_selection import sampled
from test_every_idiom import DEMANDING, exceptions
from test_hsdp import ODD_SHAPES

import nbmgpu
from nbmgpu.errors import OptionError
from nbmgpu.options.run_options import RunOptions

CLIPPED = before_step("losses.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05).item())")
SGD = "opt = torch.optim.SGD(model.parameters(), lr=0.1)\n"

CASES = [
    idiom("blocks, clipped", CLIPPED, setup=BLOCKS + SGD, curve=False),
    idiom("the largest element of gradients", CLIPPED.replace("0.05", "0.05, float('inf')"),
        setup=BLOCKS + SGD, curve=False),
    idiom("a penalty on parameters", TRAIN.replace(
        "model(x), y)", "model(x), y) + 0.01 * sum(p.square().sum() for p in model.parameters())"),
        setup=BLOCKS),
    idiom("rows that ranks do not divide", CLIPPED, setup=ODD_SHAPES + SGD, curve=False),
    idiom("a layer called by itself", TRAIN.replace("model(x)", "model(x) + model[0](x)[:, :4]"),
        setup="model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))\n" + SGD),
    idiom("a weight read by the cell", TRAIN.replace(
        "model(x)", "F.linear(torch.relu(F.linear(x, model[0].weight)), model[2].weight)"),
        setup="model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))\n" + SGD),
    idiom("frozen, then unfrozen", "model[0].requires_grad_(False)\n" + TRAIN
        + "\nmodel[0].requires_grad_(True)\n" + TRAIN,
        setup="model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))\n" + SGD),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_cells(case: Idiom) -> None:
    compare(case, 4, strategy="fsdp+tp").assert_equal()


def test_replicas_of_shards_of_parts() -> None:
    compare(CASES[0], 8, strategy="fsdp+tp", mesh="dp=2,fsdp=2,tp=2").assert_equal()


@pytest.mark.parametrize(
    "name", sampled(((n,) for n in MODELS if "dropout" not in n), 3, "nbmgpu/strategies")
)
def test_transformers(name: str) -> None:
    result = run_both(TRAIN_MODEL, MODELS[name] + TEXTS, 4, strategy="fsdp+tp")
    assert result.difference("model") < 1e-5
    assert result.difference("losses") < 1e-5


@pytest.mark.matrix("nbmgpu/strategies/fsdp", "nbmgpu/strategies/tp")  # as test_memory.py
def test_each_rank_holds_a_quarter() -> None:
    namespace = notebook()
    run = nbmgpu.run(WIDE + TRAIN + HELD, namespace, gpus=4, cpu=True, strategy="fsdp+tp")
    size = sum(p.nbytes for p in namespace["model"].parameters())
    for each in run.results.values():
        assert each["held"] <= 1.1 * 4 * size / 4 + namespace["X"].nbytes


@pytest.mark.parametrize(
    ("line", "strategy"),
    [
        ("--strategy fsdp+tp", "fsdp+tp"),
        ("--strategy tp+fsdp", "fsdp+tp"),
        ("--strategy full_shard+tensor_parallel", "fsdp+tp"),
        ("--strategy tp --mesh fsdp=2,tp=2", "fsdp+tp"),
        ("--strategy fsdp --mesh fsdp=2,tp=2", "fsdp+tp"),
        ("--strategy hsdp --mesh dp=2,fsdp=2,tp=2", "fsdp+tp"),
        ("--mesh dp_shard_size=2,tp_size=2", "fsdp+tp"),
        ("--mesh dp=2,tp=2", "tp"),
        ("--mesh dp=2,pp=2", "pp"),
        ("--mesh dp=2,fsdp=2", "fsdp"),
    ],
)
def test_words_and_meshes(line: str, strategy: str) -> None:
    assert RunOptions.parse(line).strategy == strategy


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("--strategy ddp+tp", "%%mgpu --strategy tp --mesh dp=2,tp=2"),
        ("--strategy ddp --mesh dp=2,tp=2", "%%mgpu --strategy tp --mesh dp=2,tp=2"),
        ("--mesh rows=2", "%%mgpu --strategy ddp"),
        ("--strategy fsdp+tp --compile", "%%mgpu --strategy fsdp --compile"),
    ],
)
def test_what_does_not_go_together(line: str, instead: str) -> None:
    with pytest.raises(OptionError) as error:
        RunOptions.parse(line)
    assert str(error.value).endswith(f"Try: {instead}")


@pytest.mark.parametrize(
    "case", sampled(((i,) for i in DEMANDING), 61, "nbmgpu/strategies/fsdp", "tests/idioms")
)
def test_idioms_of_the_numeric_suite(case: Idiom) -> None:
    if case.name in exceptions("fsdp") | exceptions("tp"):
        pytest.skip("an exception of fsdp or tp")
    result = compare(case, 4, strategy="fsdp+tp")
    result.assert_equal()
    assert case.notices <= result.notices
