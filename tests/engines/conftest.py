"""The engine of CONTRIBUTING.md, installed as another package would be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from entry_points import example_of_contributing, installed
from runs_folder import runs_folder  # noqa: F401

from nbmgpu.runs import engine_plugins


@pytest.fixture(scope="session")
def subprocess_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Install the engine; return its name."""
    engine = example_of_contributing("Add an engine")
    assert engine.group == engine_plugins.GROUP
    with installed(tmp_path_factory.mktemp("site-packages"), *engine):
        (name,) = engine.entry_points
        yield name
