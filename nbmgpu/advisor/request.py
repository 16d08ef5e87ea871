"""The training options that advice is requested for."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from nbmgpu.options.run_options import RunOptions
from nbmgpu.options.values import GpuRequest
from nbmgpu.runs.engine_plugins import DEFAULT_ENGINE

if TYPE_CHECKING:
    from nbmgpu.strategies.strategy_options import Precision


@dataclass(frozen=True)
class AdviceRequest:
    """Training options, named as in ``RunOptions``.

    Attributes:
        engine, nodes: where the ranks are, and on how many machines, each with ``gpus`` ranks.
        memory: free memory of each of ``gpus`` GPUs on another machine; None for this machine.
        link: Gbit/s that a node sends to others; None if unknown.
        base: the other options of the cell's line.
    """

    gpus: GpuRequest = None
    precision: Precision | None = None
    accumulate: int = 1
    checkpointing: bool = False
    batch: Literal["global", "per-rank"] = "global"
    cpu: bool = False
    engine: str = DEFAULT_ENGINE
    nodes: int | None = None
    memory: float | str | None = None
    link: float | None = None
    base: RunOptions | None = None

    @property
    def is_elsewhere(self) -> bool:
        """Whether the ranks are not on this machine."""
        return self.engine != DEFAULT_ENGINE

    @classmethod
    def from_options(cls, options: RunOptions, **more: Any) -> AdviceRequest:
        """Return the request for a run with ``options``; ``more`` are other attributes."""
        shared = {f.name for f in dataclasses.fields(options)} & {
            f.name for f in dataclasses.fields(cls)
        }
        return cls(**{name: getattr(options, name) for name in shared}, base=options, **more)

    def run_options(self, strategy: str | None = None, **overrides: Any) -> RunOptions:
        """Return the options of a run under ``strategy``, by default that of the cell's line.

        Raises:
            OptionError: an option has an invalid value, or the strategy does not support it.
        """
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for own in ("memory", "link", "base"):
            del values[own]
        base = self.base or RunOptions()
        return dataclasses.replace(base, strategy=strategy or base.strategy, **values | overrides)
