"""Installs distributions with entry points for the time of some tests, as other packages would."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import nbmgpu
from nbmgpu import strategies
from nbmgpu.report.views import external
from nbmgpu.runs import engine_plugins

CONTRIBUTING = Path(nbmgpu.__file__).parents[1] / "CONTRIBUTING.md"


class Distribution(NamedTuple):
    """A distribution with one module.

    Attributes:
        module: name of the module.
        source: of the module.
        group: ``strategies.GROUP``, ``engine_plugins.GROUP`` or ``external.GROUP``.
        entry_points: the name of a class in the module, by the name of the entry point.
    """

    module: str
    source: str
    group: str
    entry_points: Mapping[str, str]


@contextmanager
def installed(
    site: Path, module: str, source: str, group: str, entry_points: Mapping[str, str]
) -> Iterator[None]:
    """Put a distribution in the folder ``site`` and on ``sys.path``; see ``Distribution``."""
    write_distribution(site, module, source, group, entry_points)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(site)])
        read_entry_points_again()
        yield
    read_entry_points_again()
    sys.modules.pop(module, None)


def write_distribution(
    site: Path, module: str, source: str, group: str, entry_points: Mapping[str, str]
) -> None:
    """Write a distribution with one module to the folder ``site``."""
    (site / f"{module}.py").write_text(source)
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    lines = [f"{name} = {module}:{cls}" for name, cls in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))


def example_of_contributing(heading: str) -> Distribution:
    """Return the distribution that CONTRIBUTING.md prints below ``heading``."""
    section = CONTRIBUTING.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    (source,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    ((group, name, module, cls),) = re.findall(
        r"```toml\n\[project\.entry-points\.\"(.*)\"\]\n(\w+) = \"(\w+):(\w+)\"\n```", section
    )
    return Distribution(module, source, group, {name: cls})


def read_entry_points_again() -> None:
    strategies._read_again()
    for cached in (
        engine_plugins.engine_names,
        engine_plugins.load_engine,
        external.installed_views,
    ):
        cached.cache_clear()
