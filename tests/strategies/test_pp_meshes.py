"""Pipelines whose stages have several ranks, which split or shard layers: one device's numbers."""

from __future__ import annotations

import dataclasses

import pytest
from idioms.comparison import compare, run_both
from idioms.idiom import TRAIN, Idiom
from idioms.model_parallelism import HELD, MODELS, TEXTS, TRAIN_MODEL, WIDE
from idioms.notebook import notebook
from idioms.tables import BY_NAME
from matrix_selection import sampled
from test_every_idiom import DEMANDING, exceptions
from test_pp import CASES, PLAIN

import nbmgpu
from nbmgpu.errors import StrategyError
from nbmgpu.options.run_options import RunOptions

MESHES = {"tp+pp": 4, "fsdp+pp": 4, "fsdp+tp+pp": 8}
"""The number of ranks by strategy."""

EXERCISED = ("nbmgpu/strategies/pp", "nbmgpu/strategies/sharding")


def assert_equal(case: Idiom, strategy: str, **options: object) -> None:
    """Assert that a cell has one device's numbers, with the rounding of sums in parts."""
    tolerant = dataclasses.replace(case, rtol=5 * case.rtol, atol=5 * case.atol)
    compare(tolerant, MESHES[strategy], strategy=strategy, **options).assert_equal()


@pytest.mark.parametrize(
    ("case", "strategy"),
    [
        *sampled(((case, "tp+pp") for case in CASES), 4, *EXERCISED),
        *sampled(((case, "fsdp+pp") for case in CASES if len(case.ranks) == 1), 4, *EXERCISED),
    ],
)
def test_numbers_of_one_device(case: Idiom, strategy: str) -> None:
    assert_equal(case, strategy)


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("fsdp+tp+pp", {}),
        ("fsdp+tp+pp", {"mesh": ("dp=2", "pp=2", "fsdp=2")}),
        ("fsdp+tp+pp", {"mesh": ("dp=2", "pp=2", "tp=2")}),
        ("fsdp+pp", {"schedule": "interleaved"}),
        ("tp+pp", {"microbatches": 3}),
        ("tp+pp", {"tp_plan": ("0=colwise", "2=rowwise")}),
    ],
    ids=str,
)
def test_meshes_and_options(strategy: str, options: dict[str, object]) -> None:
    ranks = 8 if "mesh" in options else MESHES[strategy]
    compare(PLAIN, ranks, strategy=strategy, **options).assert_equal()


@pytest.mark.parametrize(
    ("name", "strategy"),
    sampled(((n, s) for s in MESHES for n in MODELS if "dropout" not in n), 3, *EXERCISED),
)
def test_transformers(name: str, strategy: str) -> None:
    result = run_both(TRAIN_MODEL, MODELS[name] + TEXTS, MESHES[strategy], strategy=strategy)
    assert result.difference("model") < 1e-5
    assert result.difference("losses") < 1e-5


@pytest.mark.parametrize("strategy", MESHES)
def test_each_rank_holds_its_share(strategy: str) -> None:
    namespace, ranks = notebook(), MESHES[strategy]
    run = nbmgpu.run(WIDE + TRAIN + HELD, namespace, gpus=ranks, cpu=True, strategy=strategy)
    size = sum(p.nbytes for p in namespace["model"].parameters())
    for each in run.results.values():
        assert each["held"] <= 1.15 * 4 * size / ranks + namespace["X"].nbytes


@pytest.mark.parametrize(
    ("line", "strategy"),
    [
        ("--strategy pp+tp", "tp+pp"),
        ("--strategy pp --mesh tp=2,pp=2", "tp+pp"),
        ("--strategy tp --mesh pp=2,tp=2", "tp+pp"),
        ("--mesh fsdp=2,pp=2", "fsdp+pp"),
        ("--mesh dp=2,fsdp=2,pp=2", "fsdp+pp"),
        ("--mesh fsdp=2,tp=2,pp=2", "fsdp+tp+pp"),
        ("--strategy 3d", "fsdp+tp+pp"),
        ("--mesh dp_shard=2,pipeline_parallel=2", "fsdp+pp"),
    ],
)
def test_words_and_meshes(line: str, strategy: str) -> None:
    assert RunOptions.parse(line).strategy == strategy


def test_layers_that_samples_choose() -> None:
    with pytest.raises(StrategyError, match="Ranks run different modules") as error:
        assert_equal(BY_NAME["parameters used for some samples"], "fsdp+pp")
    assert "Try: %%mgpu --strategy pp" in str(error.value)


@pytest.mark.parametrize(
    ("case", "strategy"),
    sampled(((i, s) for s in ("tp+pp", "fsdp+pp") for i in DEMANDING), 37, *EXERCISED),
)
def test_idioms_of_the_numeric_suite(case: Idiom, strategy: str) -> None:
    if case.name in exceptions("tp") | exceptions("pp") | exceptions("fsdp"):
        pytest.skip("an exception of a part")
    if strategy == "fsdp+pp" and case.name == "parameters used for some samples":
        pytest.skip("refused")
    assert_equal(case, strategy)
