"""Returns engines by name."""

from __future__ import annotations

from nbmgpu.runs.engine_plugins import DEFAULT_ENGINE, load_engine

from .base import Engine


def get_engine(name: str = DEFAULT_ENGINE) -> Engine:
    """Return this process's instance of the engine ``name``.

    Raises:
        OptionError: no engine has that name.
    """
    engine: Engine = load_engine(name)
    return engine
