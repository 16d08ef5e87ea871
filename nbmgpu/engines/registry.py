"""Returns engines by name."""

from __future__ import annotations

from nbmgpu.errors import OptionError, format_message
from nbmgpu.runs.engine_plugins import DEFAULT_ENGINE, load_engine

from .base import Engine


def get_engine(name: str = DEFAULT_ENGINE, detach: bool = False) -> Engine:
    """Return this process's instance of the engine ``name``.

    Args:
        name: of the engine.
        detach: whether its runs have to outlive the kernel.

    Raises:
        OptionError: no engine has that name, or its runs end with the kernel.
    """
    engine: Engine = load_engine(name)
    if not detach:
        return engine
    if (detached := engine.detached()) is None:
        what = f"Runs of the engine {name} end with the kernel: it has no --detach"
        raise OptionError(format_message(what, instead=f"--engine {DEFAULT_ENGINE} --detach"))
    return detached
