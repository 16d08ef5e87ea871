"""Strategies whose ranks hold parts of one model: transformers, and what each rank holds."""

from __future__ import annotations

import itertools

import pytest
from idioms.comparison import run_both
from idioms.idiom import TRAIN
from idioms.model_parallelism import HELD, MODELS, TEXTS, TRAIN_MODEL, WIDE
from idioms.notebook import notebook
from matrix_selection import sampled

import nbmgpu

STRATEGIES = ("tp", "pp")
"""Each is a dimension of its mesh, too."""

EXERCISED = ("nbmgpu/strategies/tp", "nbmgpu/strategies/pp", "nbmgpu/strategies/sharding")


@pytest.mark.matrix(*EXERCISED)  # as test_memory.py
@pytest.mark.parametrize(("strategy", "ranks"), [*itertools.product(STRATEGIES, (2, 4))])
def test_each_rank_holds_its_part_of_parameters_gradients_and_states(
    strategy: str, ranks: int
) -> None:
    namespace = notebook()
    run = nbmgpu.run(WIDE + TRAIN + HELD, namespace, gpus=ranks, cpu=True, strategy=strategy)
    size = sum(p.nbytes for p in namespace["model"].parameters())
    for each in run.results.values():
        assert each["held"] <= 1.1 * 4 * size / ranks + namespace["X"].nbytes


@pytest.mark.parametrize(
    ("strategy", "name", "replicas"),
    sampled(
        (
            case
            for case in itertools.product(STRATEGIES, MODELS, (1, 2))
            if "dropout" not in case[1] or case[2] == 1  # replicas draw for other samples
        ),
        5,
        *EXERCISED,
    ),
)
def test_transformers(strategy: str, name: str, replicas: int) -> None:
    mesh = (f"dp={replicas}", f"{strategy}=2")
    result = run_both(TRAIN_MODEL, MODELS[name] + TEXTS, 2 * replicas, strategy=strategy, mesh=mesh)
    assert result.difference("model") < 1e-5
    assert result.difference("losses") < 1e-5
