"""The strategy that CONTRIBUTING.md prints, installed as another package would be."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from entry_points import example_of_contributing, installed
from idioms.comparison import assert_equal
from idioms.idiom import Idiom, idiom
from idioms.tables import TABLES

import nbmgpu
from nbmgpu import strategies
from nbmgpu.options.run_options import RunOptions

IDIOMS = [*itertools.chain(*(TABLES[table][:2] for table in ("loaders", "losses", "optimizers")))]


@pytest.fixture(autouse=True, scope="module")
def _strategy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    example = example_of_contributing("Add a strategy")
    assert example.group == strategies.GROUP
    with installed(tmp_path_factory.mktemp("site-packages"), *example):
        yield


def test_it_is_a_strategy_like_others() -> None:
    assert RunOptions.parse("--strategy flat_ddp").strategy == "flat_ddp"
    assert strategies.strategy_names()[-1] == "flat_ddp"


@pytest.mark.parametrize("case", IDIOMS, ids=str)
def test_it_has_the_numbers_of_one_device(case: Idiom) -> None:
    result = assert_equal(case, strategy="flat_ddp")
    assert result.split() == case.split


def test_it_runs_a_cell_without_training() -> None:
    names: dict[str, object] = {}
    nbmgpu.run("x = 1", names, gpus=2, cpu=True, strategy="flat_ddp")
    assert names["x"] == 1


def test_it_trains_on_a_mesh_of_two_dimensions(tmp_path: Path) -> None:
    source = example_of_contributing("Add a strategy").source
    (other,) = re.findall(r"# the default; (\{.*?\}) has", source)
    source = source.replace('{"dp": world_size}', other).replace("flat_ddp", "flat_mesh")
    with installed(tmp_path, "flat_mesh", source, strategies.GROUP, {"flat_mesh": "FlatAllReduce"}):
        uneven = idiom("uneven", setup="loader = DataLoader(dataset, 7, shuffle=True)")
        assert_equal(uneven, 4, strategy="flat_mesh")
