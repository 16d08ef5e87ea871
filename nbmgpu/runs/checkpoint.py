"""Checkpoints on disk: a folder each, in the folder of their run.

::

    checkpoints/step-00000500/
      checkpoint.json        where in the cell it was written; complete if this is there
      states, values         pickles without their tensors (see nbmgpu.rank.checkpoints.capture)
      random                 a pickle of the random states of each rank
      .metadata, *.distcp    the tensors, as torch.distributed.checkpoint writes them
"""

from __future__ import annotations

import dataclasses
import shutil
import zlib
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbmgpu.errors import CheckpointError, OptionError, format_message
from nbmgpu.system.ownership import require_own_folder

from .checkpoint_description import CheckpointDescription
from .checkpoint_state import Copies, loads
from .checkpoint_tensors import METADATA, map_tensors
from .folder import write_atomically
from .trainer_checkpoint import trainer_states

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .run import Run

NEWEST = "newest"
"""Stands for the newest run of a cell that has a checkpoint."""

CHECKPOINTS = "checkpoints"
DESCRIPTION = "checkpoint.json"
STATES, VALUES, RANDOM = "states", "values", "random"
STEP_FOLDER = "step-"

DAMAGED = "It was incomplete, or has been changed, since it had been written"
FROM_BEGINNING = "the cell without --resume, which starts from the beginning"
WRONG_CHECKSUM = "its checksum is another one"
BLOCK = 1 << 24
"""Bytes of a file that are read at once."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint.

    Attributes:
        folder: its files.
    """

    folder: Path

    @property
    def description(self) -> CheckpointDescription:
        """Where in the cell it was written.

        Raises:
            CheckpointError: ``checkpoint.json`` is missing or damaged.
        """
        try:
            return CheckpointDescription.from_json((self.folder / DESCRIPTION).read_text())
        except (OSError, ValueError) as error:
            raise self.damaged(DESCRIPTION, error) from None

    def check(self, content: bool = False) -> None:
        """Raise an error unless all files are there in full.

        Args:
            content: whether to read the files, too, of which there are checksums.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        description = self.description
        for name, size in description.sizes.items():
            try:
                found = (self.folder / name).stat().st_size
            except OSError as error:
                raise self.damaged(name, error) from None
            if found != size:
                raise self.damaged(name, f"it has {found} of {size} bytes")
        for name, checksum in description.checksums.items() if content else ():
            if _checksum(self.folder / name) != checksum:
                raise self.damaged(name, WRONG_CHECKSUM)

    def damaged(self, file: str, cause: Exception | str) -> CheckpointError:
        """Return the error that a file is missing or damaged, and where else a cell may go on."""
        if isinstance(cause, OSError) and cause.strerror:
            cause = cause.strerror
        where = f"{file!r} of checkpoint {self.folder.name} cannot be read: {cause}"
        earlier = self._previous()
        way = f"--resume '{earlier.folder}', the one before" if earlier else FROM_BEGINNING
        return CheckpointError(format_message(where, f"{DAMAGED}: {self.folder / file}", way))

    def _previous(self) -> Checkpoint | None:
        """Return the newest undamaged checkpoint of the run that is older."""
        older = [Checkpoint(each) for each in complete_folders(self.folder.parent)
                 if each.name < self.folder.name]  # fmt: skip
        while older:
            with suppress(CheckpointError):
                older[-1].check()
                return older[-1]
            older.pop()
        return None

    def read(self, name: str) -> bytes:
        """Return the content of one of the files that are pickles.

        Raises:
            CheckpointError: it is missing or damaged.
        """
        checksum = self.description.checksums.get(name)
        try:
            data = (self.folder / name).read_bytes()
        except OSError as error:
            raise self.damaged(name, error) from None
        if checksum is not None and zlib.crc32(data) != checksum:
            raise self.damaged(name, WRONG_CHECKSUM)
        return data

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
        """The state dicts of models, optimizers, schedulers and scalers, by variable.

        Raises:
            CheckpointError: a file is missing or damaged.
            OwnershipError: another user may have written the checkpoint.
        """
        self.require_own()
        if library := self.description.trainer:
            self.check(content=True)
            return trainer_states(self.folder, library)
        data = self.read(STATES)
        states: dict[str, Any] = loads(
            data, Copies(self.map_tensors(self.description.tensors.states))
        )
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

    def map_tensors(self, number: int) -> list[Tensor]:
        """Map the first ``number`` tensors into memory, on the CPU; needs no process group.

        Raises:
            CheckpointError: a file is missing or damaged.
            OwnershipError: another user may have written the checkpoint.
        """
        self.require_own()
        self.read(METADATA)
        return map_tensors(self.folder, number, self.damaged)

    def __repr__(self) -> str:
        """Return the folder, whose name has the step."""
        return f"<Checkpoint {str(self.folder)!r}>"


def _fits(state: dict[str, Any], own: dict[str, Any]) -> bool:
    """Return whether a state dict has all tensors of ``own``, shared ones at least once."""
    known = {own[name].data_ptr() for name in state.keys() & own.keys()}
    return (
        bool(state)
        and state.keys() <= own.keys()
        and all(name in state or tensor.data_ptr() in known for name, tensor in own.items())
    )


@dataclass(frozen=True)
class FoundCheckpoints:
    """The checkpoints in a folder, oldest first.

    Attributes:
        whole: those whose files are all there.
        damaged: what is the matter with each of the others.
    """

    whole: list[Checkpoint]
    damaged: list[CheckpointError]


def _checksum(path: Path) -> int:
    """Return the CRC-32 of a file."""
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            checksum = zlib.crc32(block, checksum)
    return checksum


def complete(
    folder: Path, description: CheckpointDescription, checked: Collection[str] | None = None
) -> int:
    """Write ``description`` as the last file of a checkpoint, with the sizes of all others.

    Returns:
        The size of all of them.

    Args:
        folder: the checkpoint, which has all other files.
        description: without sizes and checksums.
        checked: the files that get a checksum; None for all.
    """
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    sizes = {name: path.stat().st_size for name, path in files.items()}
    checksums = {name: _checksum(files[name]) for name in (files if checked is None else checked)}
    text = dataclasses.replace(description, sizes=sizes, checksums=checksums).to_json()
    write_atomically(folder / DESCRIPTION, text)
    return sum(sizes.values())


def complete_folders(checkpoints: Path) -> list[Path]:
    """Return the folders of checkpoints that were completed, oldest first."""
    return sorted(path.parent for path in checkpoints.glob(f"{STEP_FOLDER}*/{DESCRIPTION}"))


def remove_old(checkpoints: Path, keep: int) -> None:
    """Remove all complete checkpoints in a folder but the newest ``keep``."""
    for folder in complete_folders(checkpoints)[:-keep]:
        with suppress(OSError):
            (folder / DESCRIPTION).unlink()  # first: it is not complete any more
            shutil.rmtree(folder)


def step_folder(run_folder: Path, step: int) -> Path:
    """Return the folder of the checkpoint after a step."""
    return run_folder / CHECKPOINTS / f"{STEP_FOLDER}{step:08d}"


def find_checkpoints(run: Run) -> FoundCheckpoints:
    """Return the checkpoints of a run that were completed."""
    found = FoundCheckpoints([], [])
    for folder in complete_folders(run.folder / CHECKPOINTS):
        checkpoint = Checkpoint(folder)
        try:
            checkpoint.check()
        except CheckpointError as error:
            if (folder / DESCRIPTION).exists():  # otherwise a running run has just removed it
                found.damaged.append(error)
        else:
            found.whole.append(checkpoint)
    return found
