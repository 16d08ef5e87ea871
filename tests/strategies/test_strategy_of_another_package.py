"""The strategy that CONTRIBUTING.md prints, installed as another package would be."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from idiom import Idiom, compare, idiom
from installed import installed

import nbmgpu
from nbmgpu import strategies
from nbmgpu.options.run_options import RunOptions

CONTRIBUTING = Path(nbmgpu.__file__).parents[1] / "CONTRIBUTING.md"

IDIOMS = [
    idiom for table in ("loaders", "losses", "optimizers")
    for idiom in importlib.import_module(f"cells_{table}").IDIOMS[:3]
]  # fmt: skip


def blocks(kind: str) -> list[str]:
    section = CONTRIBUTING.read_text().split("## Add a strategy")[1].split("\n## ")[0]
    return re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL)


@pytest.fixture(autouse=True, scope="module")
def _strategy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    (source,), (toml,) = blocks("python"), blocks("toml")
    ((name, module, cls),) = re.findall(r"^(\w+) = \"(\w+):(\w+)\"$", toml, re.MULTILINE)
    site = tmp_path_factory.mktemp("site-packages")
    with installed(site, module, source, {name: cls}):
        yield


def test_it_is_a_strategy_like_others() -> None:
    assert RunOptions.parse("--strategy flat_ddp").strategy == "flat_ddp"
    assert strategies.strategy_names()[-1] == "flat_ddp"


@pytest.mark.parametrize("case", IDIOMS, ids=str)
def test_ranks_leave_what_one_device_leaves(case: Idiom) -> None:
    result = compare(case, 2, strategy="flat_ddp")
    assert not result.wrong, "\n".join(result.wrong)
    assert result.split() == case.split


def test_a_cell_may_train_nothing() -> None:
    names: dict[str, object] = {}
    nbmgpu.run("x = 1", names, gpus=2, cpu=True, strategy="flat_ddp")
    assert names["x"] == 1


def test_it_trains_on_a_mesh_of_two_dimensions(tmp_path: Path) -> None:
    (source,) = blocks("python")
    (other,) = re.findall(r"# the default; (\{.*?\}) has", source)
    source = source.replace('{"dp": world_size}', other).replace("flat_ddp", "flat_mesh")
    with installed(tmp_path, "flat_mesh", source, {"flat_mesh": "FlatAllReduce"}):
        uneven = idiom("uneven", setup="loader = DataLoader(dataset, 7, shuffle=True)")
        result = compare(uneven, 4, strategy="flat_mesh")
    assert not result.wrong, "\n".join(result.wrong)
