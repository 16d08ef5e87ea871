"""What a checkpoint describes: where in the cell it was written, and what its files are."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from .field_types import has_declared_types
from .trainer_checkpoint import TrainerLibrary


@dataclass(frozen=True)
class LoopEntry:
    """A loop that has begun.

    Attributes:
        function, line: where it is, see ``nbmgpu.rank.checkpoints.loops.LoopSite``.
        entry: how often it had begun before, in the same iteration of the loop around it.
    """

    function: str
    line: int
    entry: int


@dataclass(frozen=True)
class LoopPosition:
    """A loop that was running when a checkpoint was written, or the cell around all loops.

    Attributes:
        loop: the loop; None for the cell.
        count: number of iterations begun.
        trained: loops in this iteration that were over and had trained.
    """

    loop: LoopEntry | None
    count: int
    trained: list[LoopEntry]


@dataclass(frozen=True)
class TensorCounts:
    """The numbers of tensors in a checkpoint.

    Attributes:
        states: those of models, optimizers and schedulers, which come first.
        total: all of them.
    """

    states: int = 0
    total: int = 0


@dataclass(frozen=True)
class CheckpointDescription:
    """The content of ``checkpoint.json``.

    Attributes:
        step: the last training step, as in the run's curves.
        loaded: the step of the last batch that was loaded; later than ``step`` in most loops.
        curves: the step of the last point of each curve.
        samples: number of samples so far.
        world_size: number of ranks.
        levels: the cell, and the loops that were running, outermost first.
        tensors: how many there are.
        left_out: variables that cannot be pickled.
        trainer: the library whose Trainer has written it, with files of its own.
        training: which training of the cell that was, from 1.
        loss_scale: the scale of losses under ``--precision fp16``; empty without.
        sizes: of all other files, in bytes, by their path in the folder.
        time: when its states were read, in seconds since the epoch; 0 in older checkpoints.
        checksums: CRC-32 of the files that are pickles; tensors have theirs beside them.
    """

    step: int
    loaded: int
    curves: dict[str, int]
    samples: int
    world_size: int
    levels: list[LoopPosition] = field(default_factory=list)
    tensors: TensorCounts = field(default_factory=TensorCounts)
    left_out: list[str] = field(default_factory=list)
    trainer: TrainerLibrary = ""
    training: int = 0
    loss_scale: dict[str, float] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    checksums: dict[str, int] = field(default_factory=dict)
    time: float = 0.0

    def to_json(self) -> str:
        """Return the text of the file."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> CheckpointDescription:
        """Return what the text of the file says.

        Raises:
            ValueError: it is incomplete, or another version of nbmgpu wrote it.
        """
        try:
            fields = json.loads(text)
            levels = [
                LoopPosition(
                    None if each["loop"] is None else LoopEntry(**each["loop"]),
                    each["count"],
                    [LoopEntry(**trained) for trained in each["trained"]],
                )
                for each in fields["levels"]
            ]
            tensors = TensorCounts(**fields["tensors"])
            description = cls(**fields | {"levels": levels, "tensors": tensors})
        except KeyError as missing:
            raise ValueError(f"{missing} is missing") from None
        except (TypeError, RecursionError) as error:
            raise ValueError(f"it has other fields: {error}") from None
        if not has_declared_types(description):
            raise ValueError("a field has another type")
        if not description.levels and not description.trainer:
            raise ValueError("it has no levels")
        return description
