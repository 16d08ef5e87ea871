"""Pipelines whose stages have several ranks, which split or shard layers: one device's numbers."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from idioms.comparison import compare, run_both
from idioms.idiom import TRAIN, Idiom
from idioms.model_parallelism import HELD, MODELS, TEXTS, TRAIN_MODEL, WIDE
from idioms.notebook import notebook
from idioms.tables import BY_NAME
from matrix_selection import sampled
from test_every_idiom import DEMANDING, exceptions, known_difference
from test_pp import CASES, MIXING, PLAIN, SGD

import nbmgpu
from nbmgpu.errors import OptionError, RankKilledError, StrategyError
from nbmgpu.options.run_options import RunOptions
from nbmgpu.strategies import profile_of
from nbmgpu.strategies.mesh_sizes import mesh_sizes

MESHES = {"tp+pp": 4, "fsdp+pp": 4, "fsdp+tp+pp": 8}
"""The number of ranks by strategy."""

EXERCISED = ("nbmgpu/strategies/pp", "nbmgpu/strategies/sharding")


def assert_equal(case: Idiom, strategy: str, **options: object) -> None:
    """Assert that a cell has one device's numbers, with the rounding of sums in parts."""
    tolerant = dataclasses.replace(case, rtol=5 * case.rtol, atol=5 * case.atol)
    result = compare(tolerant, MESHES[strategy], strategy=strategy, **options)
    result.assert_equal(known_difference(case, strategy))


@pytest.mark.parametrize(
    ("case", "strategy"),
    [
        *sampled(((case, "tp+pp") for case in CASES), 17, *EXERCISED),
        *sampled(((case, "fsdp+pp") for case in CASES if len(case.ranks) == 1), 17, *EXERCISED),
    ],
)
def test_numbers_of_one_device(case: Idiom, strategy: str) -> None:
    assert_equal(case, strategy)


@pytest.mark.parametrize(
    ("strategy", "options"),
    sampled(
        [
            ("fsdp+tp+pp", {}),
            ("fsdp+tp+pp", {"mesh": ("dp=2", "pp=2", "fsdp=2")}),
            ("fsdp+tp+pp", {"mesh": ("dp=2", "pp=2", "tp=2")}),
            ("fsdp+pp", {"schedule": "interleaved"}),
            ("tp+pp", {"microbatches": 3}),
            ("tp+pp", {"tp_plan": ("0=colwise", "2=rowwise")}),
        ],
        2,
        *EXERCISED,
    ),
)
def test_meshes_and_options(strategy: str, options: dict[str, object]) -> None:
    ranks = 8 if "mesh" in options else MESHES[strategy]
    compare(PLAIN, ranks, strategy=strategy, **options).assert_equal()


@pytest.mark.parametrize(
    ("name", "strategy"),
    sampled(((n, s) for s in MESHES for n in MODELS if "dropout" not in n), 8, *EXERCISED),
)
def test_transformers(name: str, strategy: str) -> None:
    result = run_both(TRAIN_MODEL, MODELS[name] + TEXTS, MESHES[strategy], strategy=strategy)
    assert result.difference("model") < 1e-5
    assert result.difference("losses") < 1e-5


@pytest.mark.parametrize("strategy", sampled(((s,) for s in reversed(MESHES)), 3, *EXERCISED))
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


def test_samples_that_meet_in_a_layer_are_those_of_one_group() -> None:
    result = run_both(TRAIN, MIXING + SGD, 4, strategy="fsdp+pp")
    assert result.difference() > 1e-3
    assert "the samples of one group" in result.run.view.notices["pipeline-whole-batches"].text


@pytest.mark.parametrize(
    ("case", "strategy"),
    sampled(((i, s) for s in ("tp+pp", "fsdp+pp") for i in DEMANDING), 113, *EXERCISED),
)
def test_idioms_of_the_numeric_suite(case: Idiom, strategy: str) -> None:
    if case.name in exceptions("tp") | exceptions("pp") | exceptions("fsdp"):
        pytest.skip("an exception of a part")
    if strategy == "fsdp+pp" and case.name == "parameters used for some samples":
        pytest.skip("refused")
    assert_equal(case, strategy)


@pytest.mark.parametrize(
    ("line", "what", "instead"),
    [
        ("--mesh foo=2,tp=2", "there is no dimension foo", "--strategy tp --mesh tp=2"),
        ("--mesh sp=2,pp=2", "No strategy has a mesh of sp and pp", "--strategy sp --mesh sp=2"),
        ("--mesh fsdp=2,tp", "is not a device mesh", "--strategy fsdp --mesh fsdp=2"),
        ("--strategy fsdp+pp --balance time", "several ranks hold do not move", "--strategy pp"),
    ],
)
def test_meshes_that_no_strategy_has(line: str, what: str, instead: str) -> None:
    with pytest.raises(OptionError, match=what) as error:
        RunOptions.parse(line)
    assert f"Try: %%mgpu {instead}" in str(error.value)


@pytest.mark.parametrize(
    ("strategy", "ranks", "mesh"),
    [
        ("fsdp+tp+pp", 8, {"pp": 2, "fsdp": 2, "tp": 2}),
        ("fsdp+tp+pp", 4, {"pp": 2, "fsdp": 1, "tp": 2}),
        ("tp+pp", 6, {"pp": 2, "tp": 3}),
        ("fsdp+pp", 2, {"pp": 1, "fsdp": 2}),
    ],
)
def test_default_meshes(strategy: str, ranks: int, mesh: dict[str, int]) -> None:
    found = mesh_sizes(profile_of(strategy), ranks, RunOptions.parse(""))
    assert found == {"dp": 1} | mesh


def test_after_a_killed_rank_the_error_says_that_weights_are_those_from_before() -> None:
    namespace = notebook()
    exec(PLAIN.setup, namespace)
    before = copy.deepcopy(namespace["model"].state_dict())
    cell = "import os, signal\n" + TRAIN + (
        "    if not epoch and int(os.environ['RANK']) == 3:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )  # fmt: skip
    with pytest.raises(RankKilledError, match="are those from before the cell"):
        nbmgpu.run(cell, namespace, gpus=4, cpu=True, strategy="fsdp+pp")
    after = namespace["model"].state_dict()
    assert all(torch.equal(value, before[name]) for name, value in after.items())
