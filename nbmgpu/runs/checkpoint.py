"""Checkpoints on disk: a folder each, in the folder of their run.

::

    checkpoints/step-00000500/
      checkpoint.json        where in the cell it was written; complete if this is there
      states, values         pickles without their tensors (see nbmgpu.rank.checkpoints.capture)
      random                 a pickle of the random states of each rank
      .metadata, *.distcp    the tensors, as torch.distributed.checkpoint writes them
"""

from __future__ import annotations

import json
import shutil
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbmgpu.errors import OptionError, format_message
from nbmgpu.system.ownership import require_own_folder

from .checkpoint_state import loads
from .trainer_checkpoint import TrainerLibrary, trainer_states

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .run import Run

NEWEST = "newest"
"""Stands for the newest run of a cell that has a checkpoint."""

CHECKPOINTS = "checkpoints"
DESCRIPTION = "checkpoint.json"
STATES, VALUES, RANDOM = "states", "values", "random"


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
class CheckpointDescription:
    """The content of ``checkpoint.json``.

    Attributes:
        step: the last training step, as in the run's curves.
        loaded: the step of the last batch that was loaded; later than ``step`` in most loops.
        curves: the step of the last point of each curve.
        samples: number of samples so far.
        world_size: number of ranks.
        levels: the cell, and the loops that were running, outermost first.
        num_states: number of tensors of state dicts; those of variables follow.
        num_tensors: number of all tensors.
        left_out: variables that cannot be pickled.
        trainer: the library whose Trainer has written it, with files of its own.
        training: which training of the cell that was, from 1.
    """

    step: int
    loaded: int
    curves: dict[str, int]
    samples: int
    world_size: int
    levels: list[LoopPosition] = field(default_factory=list)
    num_states: int = 0
    num_tensors: int = 0
    left_out: list[str] = field(default_factory=list)
    trainer: TrainerLibrary = ""
    training: int = 0

    def to_json(self) -> str:
        """Return the text of the file."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> CheckpointDescription:
        """Return what the text of the file says."""
        fields = json.loads(text)
        levels = [
            LoopPosition(
                None if each["loop"] is None else LoopEntry(**each["loop"]),
                each["count"],
                [LoopEntry(**trained) for trained in each["trained"]],
            )
            for each in fields["levels"]
        ]
        return cls(**fields | {"levels": levels})


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint.

    Attributes:
        folder: its files.
    """

    folder: Path

    @property
    def description(self) -> CheckpointDescription:
        """Where in the cell it was written."""
        return CheckpointDescription.from_json((self.folder / DESCRIPTION).read_text())

    def require_own(self) -> None:
        """Raise an error unless all of its files are one's own: they are unpickled.

        Raises:
            OwnershipError: another user may have written one of them.
        """
        require_own_folder(self.folder)

    @property
    def step(self) -> int:
        """The training step that it was written after."""
        return self.description.step

    @property
    def states(self) -> dict[str, Any]:
        """The state dicts of models, optimizers, schedulers and scalers, by variable."""
        self.require_own()
        if library := self.description.trainer:
            return trainer_states(self.folder, library)
        data = (self.folder / STATES).read_bytes()
        states: dict[str, Any] = loads(data, self.read_tensors(self.description.num_states))
        return states

    def load(self, module: nn.Module, name: str = "") -> None:
        """Load the weights of a model into ``module``.

        Args:
            module: a model with the same parameters.
            name: the variable of the model in the cell; by default the one whose state fits.

        Raises:
            OptionError: the checkpoint has no such model, or several.
            OwnershipError: another user may have written it.
        """
        states, own = self.states, module.state_dict()
        fitting = [
            path for path, state in states.items()
            if isinstance(state, dict) and _fits(state, own)
        ]  # fmt: skip
        chosen = [name] if name in states else fitting
        if len(chosen) != 1 or (name and name not in states):
            what = f"The checkpoint has no model {name!r}" if name else (
                "Several models of the checkpoint fit" if fitting else
                "No model of the checkpoint has the same parameters"
            )  # fmt: skip
            raise OptionError(format_message(what, f"It has the states of {', '.join(states)}"))
        module.load_state_dict(states[chosen[0]], strict=not self.description.trainer)

    def read_tensors(self, number: int) -> list[Tensor]:
        """Read the first ``number`` tensors, on the CPU; needs no process group.

        Raises:
            OwnershipError: another user may have written the checkpoint.
        """
        self.require_own()
        import torch
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata
        from torch.distributed.checkpoint.state_dict_loader import load

        reader = FileSystemReader(self.folder)
        entries = reader.read_metadata().state_dict_metadata
        tensors: dict[str, Any] = {}
        for at in range(number):
            entry = entries[tensor_key(at)]
            assert isinstance(entry, TensorStorageMetadata)
            tensors[tensor_key(at)] = torch.empty(entry.size, dtype=entry.properties.dtype)
        if tensors:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as asked for
                load(tensors, storage_reader=reader, no_dist=True)
        return list(tensors.values())

    def __repr__(self) -> str:
        """Return step and folder."""
        return f"<Checkpoint after step {self.step}: {str(self.folder)!r}>"


def _fits(state: dict[str, Any], own: dict[str, Any]) -> bool:
    """Return whether a state dict has all tensors of ``own``, shared ones at least once."""
    known = {own[name].data_ptr() for name in state.keys() & own.keys()}
    return (
        bool(state)
        and state.keys() <= own.keys()
        and all(name in state or tensor.data_ptr() in known for name, tensor in own.items())
    )


def remove_old(checkpoints: Path, keep: int) -> None:
    """Remove all complete checkpoints in a folder but the newest ``keep``."""
    complete = sorted(path.parent for path in checkpoints.glob(f"step-*/{DESCRIPTION}"))
    for folder in complete[:-keep]:
        with suppress(OSError):
            (folder / DESCRIPTION).unlink()  # first: it is not complete any more
            shutil.rmtree(folder)


def tensor_key(number: int) -> str:
    """Return the name of a tensor in a checkpoint."""
    return f"tensor-{number}"


def step_folder(run_folder: Path, step: int) -> Path:
    """Return the folder of the checkpoint after a step."""
    return run_folder / CHECKPOINTS / f"step-{step:08d}"


def checkpoints_of(run: Run) -> list[Checkpoint]:
    """Return the complete checkpoints of a run, oldest first."""
    folders = sorted((run.folder / CHECKPOINTS).glob("step-*"))
    return [Checkpoint(folder) for folder in folders if (folder / DESCRIPTION).exists()]
