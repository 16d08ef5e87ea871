"""Installs strategies for the time of some tests, as another package would."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from nbmgpu import strategies


@contextmanager
def installed(site: Path, module: str, source: str, names: Mapping[str, str]) -> Iterator[None]:
    """Put a distribution in the folder ``site`` and on ``sys.path``.

    Args:
        site: an empty folder.
        module: name of its one module.
        source: of the module.
        names: class of each strategy, by the name of the strategy.
    """
    (site / f"{module}.py").write_text(source)
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    lines = [f"{name} = {module}:{cls}" for name, cls in names.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{strategies.GROUP}]", *lines, ""]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(site)])
        yield
    strategies._read_again()
    sys.modules.pop(module, None)
