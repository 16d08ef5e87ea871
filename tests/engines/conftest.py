"""The engine of CONTRIBUTING.md, installed as another package would be."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nbmgpu
from nbmgpu.runs import engine_plugins

CONTRIBUTING = Path(nbmgpu.__file__).parents[1] / "CONTRIBUTING.md"


def forget_engines() -> None:
    """Let entry points be looked up again."""
    for cached in (
        engine_plugins._entry_points,
        engine_plugins.engine_names,
        engine_plugins.load_engine,
    ):
        cached.cache_clear()


@pytest.fixture(scope="session")
def subprocess_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Install the engine; return its name."""
    section = CONTRIBUTING.read_text().split("## Add an engine")[1].split("\n## ")[0]
    (source,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (entry_point,) = re.findall(r"```toml\n\[.*\]\n(\w+) = \"(.*?)\"\n```", section)
    site = tmp_path_factory.mktemp("site-packages")
    (site / "subprocess_engine.py").write_text(source)
    info = site / "subprocess_engine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: subprocess-engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{engine_plugins.GROUP}]\n{entry_point[0]} = {entry_point[1]}\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(site)])
        forget_engines()
        yield entry_point[0]
    forget_engines()
