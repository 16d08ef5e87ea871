"""The rank that this process is, for functions that both notebooks and cells call.

Imports nothing heavy: a notebook asks here whether it is a rank, before torch is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from torch import Tensor

    from nbmgpu.rank.checkpoints.trainers import TrainerCheckpoints


class MetricsLog(Protocol):
    """Accepts the metrics of ``nbmgpu.log``."""

    def log(self, values: dict[str, Any]) -> None:
        """Record ``values`` by name at the current step.

        Raises:
            TypeError: a value is not one number.
        """


class BatchSharing(Protocol):
    """Divides the batches of ``nbmgpu.share``."""

    def iterate(
        self, batch: tuple[Tensor, ...], dim: int, frame: FrameType | None
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield this rank's part of ``batch`` along ``dim``, once, for the loop in ``frame``.

        Raises:
            OptionError: the options of the run have no such batches.
        """


metrics_log: MetricsLog | None = None
"""Set while this process is a rank; None in a notebook."""

shared_batches: BatchSharing | None = None
"""Set while this process is a rank; None in a notebook."""

trainer_checkpoints: TrainerCheckpoints | None = None
"""Set in ranks that write checkpoints, or resume from one, before a Trainer trains."""
