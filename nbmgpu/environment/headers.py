"""What kernel and ranks exchange besides the cell's objects; it comes first in each file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import library_settings, logging_state, module_state, random_state, torch_settings
from .library_settings import Settings
from .module_state import ModuleState
from .process_settings import ProcessSettings
from .random_state import RandomState

if TYPE_CHECKING:
    from nbmgpu.trackers.base import NotebookTrackers

SampleDims = tuple[int | None, ...]
"""The dimension of the samples in each leaf of a value; None for a leaf without samples."""


@dataclass(frozen=True)
class BundleHeader:
    """What a rank restores before it runs the cell.

    Attributes:
        random: states of random number generators, see ``nbmgpu.environment.random_state``.
        settings: those of torch, see ``nbmgpu.environment.torch_settings``.
        verbosity: warnings and loggers, see ``nbmgpu.environment.logging_state``.
        tracked: the runs of experiment trackers that the notebook has started.
        sources: source and execution count (or None) of the notebook's earlier cells, by file name.
        execution_count: the execution count of the cell.
        modules: attributes of the user's modules, see ``nbmgpu.environment.module_state``.
        libraries: settings of libraries, see ``nbmgpu.environment.library_settings``.
    """

    random: RandomState
    settings: dict[str, Any]
    verbosity: dict[str, Any]
    tracked: NotebookTrackers
    sources: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    execution_count: int = 1
    modules: dict[str, ModuleState] = field(default_factory=dict)
    libraries: Settings = field(default_factory=dict)

    @classmethod
    def capture(
        cls,
        tracked: NotebookTrackers,
        sources: dict[str, tuple[str, int | None]],
        execution_count: int,
    ) -> BundleHeader:
        """Return the header with the state of this process; see the attributes."""
        return cls(
            random_state.capture(),
            torch_settings.capture(),
            logging_state.capture(),
            tracked,
            sources,
            execution_count,
            module_state.capture(),
            library_settings.capture(),
        )


@dataclass(frozen=True)
class ResultHeader:
    """What rank 0 returns when the cell is over.

    Attributes:
        random: states of random number generators, after the cell.
        deleted: names that the cell has deleted.
        kept: names that are bound to the same object as before.
        tracked: how the cell has left the notebook's runs of trackers, by library.
        held: memo indices of the notebook's objects that stay in the ranks.
        held_bytes: bytes of models and optimizer states in this rank, if it stays.
        batch_parts: names that hold this rank's part of the last batch, or what it has computed of
            that part, with the dimensions of the samples; None for a batch of a loader.
        summaries: of large values, for a comparison with those of other ranks.
        modules: attributes of the user's modules that the cell has changed.
        process: settings of the process that the cell has changed.
    """

    random: RandomState
    deleted: list[str]
    kept: list[str]
    tracked: dict[str, Any]
    held: list[int] = field(default_factory=list)
    held_bytes: int = 0
    batch_parts: dict[str, SampleDims | None] = field(default_factory=dict)
    summaries: dict[str, list[Any]] = field(default_factory=dict)
    modules: dict[str, ModuleState] = field(default_factory=dict)
    process: ProcessSettings = field(default_factory=ProcessSettings)


@dataclass(frozen=True)
class RankPart:
    """What another rank returns besides its values.

    Attributes:
        dp_rank: its index along ``dp``.
        batch: its part of the last batch, and what it has computed of that part; None if that is
            too large.
        summaries: see ``ResultHeader``.
        modules: see ``ResultHeader``.
    """

    dp_rank: int
    batch: dict[str, Any] | None
    summaries: dict[str, list[Any]] = field(default_factory=dict)
    modules: dict[str, ModuleState] = field(default_factory=dict)
