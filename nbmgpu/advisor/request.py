"""The training options that advice is requested for."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from nbmgpu.options.run_options import RunOptions
from nbmgpu.options.values import GpuRequest

if TYPE_CHECKING:
    from nbmgpu.strategies.strategy_options import Precision


@dataclass(frozen=True)
class AdviceRequest:
    """Training options, named as in ``RunOptions``.

    Attributes:
        memory: free memory of each of ``gpus`` GPUs on another machine; None for this machine.
        base: the other options of the cell's line.
    """

    gpus: GpuRequest = None
    precision: Precision | None = None
    accumulate: int = 1
    checkpointing: bool = False
    batch: Literal["global", "per-rank"] = "global"
    cpu: bool = False
    memory: float | str | None = None
    base: RunOptions | None = None

    @classmethod
    def from_options(cls, options: RunOptions) -> AdviceRequest:
        """Return the request for a run with ``options``."""
        shared = {f.name for f in dataclasses.fields(options)} & {
            f.name for f in dataclasses.fields(cls)
        }
        return cls(**{name: getattr(options, name) for name in shared}, base=options)

    def run_options(self, strategy: str | None = None, **overrides: Any) -> RunOptions:
        """Return the options of a run under ``strategy``, by default that of the cell's line.

        Raises:
            OptionError: an option has an invalid value, or the strategy does not support it.
        """
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del values["memory"], values["base"]
        base = self.base or RunOptions()
        return dataclasses.replace(base, strategy=strategy or base.strategy, **values | overrides)
