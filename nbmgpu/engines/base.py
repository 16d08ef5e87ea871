"""The interface between a notebook's kernel and the machines that its ranks run on.

Kernel, ranks and readers of a run share nothing but the run folder.  An engine is responsible for:

- *placement*: which devices the ranks get (``place``);
- *storage*: where the kernel writes the bundle and reads the results (``allocate``, ``release``);
- *ranks*: it starts ``python -m nbmgpu.rank <run folder>`` for each, or calls
  ``nbmgpu.rank.main.run_rank`` in a process of its own, with a ``RankEnvironment``: the rendezvous
  address and the rank's position (``launch``);
- *supervision*: something that outlives ``launch`` appends the events ``Started``, ``Exited`` and
  ``Ended`` to ``events/launcher.jsonl``, obeys the ``stop`` file, and ends all ranks when one
  fails: ``nbmgpu.engines.supervision`` does all that for ranks it can poll and signal;
- *transport*, where ranks do not see the kernel's files: ``send_bundle`` and ``sync``;
- *held ranks*, if it accepts ``--hold``, as that of this machine does: ``hand_on``;
- *liveness and stop* for readers in other processes: ``is_alive`` and ``stop``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from nbmgpu.runs.engine_plugins import RunControl

if TYPE_CHECKING:
    from nbmgpu.devices.placement import Placement
    from nbmgpu.options.run_options import RunOptions
    from nbmgpu.runs.run import Run
    from nbmgpu.serialization.storage import Storage


@dataclass(frozen=True)
class RunStorage:
    """Where the kernel writes the bundle of a run, and reads the result of each rank, in order."""

    bundle: Storage
    results: tuple[Storage, ...]

    @classmethod
    def in_files(cls, folder: Path, nbytes: int, world_size: int) -> RunStorage:
        """Return files in the run folder; see ``Engine.allocate``."""
        from nbmgpu.serialization.storage import allocate_file

        bundle = allocate_file(folder, "bundle", nbytes)
        results = (allocate_file(folder, f"result-{rank}", 0) for rank in range(world_size))
        return cls(bundle, tuple(results))

    def close(self) -> None:
        """Free the memory, or remove the files."""
        for each in (self.bundle, *self.results):
            each.close()


class RunHandle:
    """What the launching kernel knows of a run besides its events."""

    def error(self) -> str:
        """Return why the run will never start; empty as long as it may, or once it has started."""
        return ""

    def status(self) -> str:
        """Return what the run waits for before it starts, such as its place in a queue."""
        return ""


class Engine(RunControl, Protocol):
    """Starts runs.  One instance per process; readers of a run use ``is_alive`` and ``stop``."""

    outlives_kernel: ClassVar[bool]
    """Whether a run continues when the kernel that launched it ends.  Its results then stay in the
    run folder until ``attach`` in another kernel writes them back."""

    crosses_network: ClassVar[bool] = False
    """Whether the notebook's data reach the ranks over a network: the user is told how much."""

    def detached(self) -> Engine | None:
        """Return the engine for runs with ``--detach``: they outlive the kernel.

        By default the engine itself if its runs do so anyway, else None: it has no such runs.
        """
        return self if self.outlives_kernel else None

    def check_options(self, values: Mapping[str, str]) -> None:
        """Check options of the engine's own before any cell uses them, such as those of a profile.

        Args:
            values: of ``--engine-option``.

        Raises:
            OptionError: the engine has no such option, or no such value.
        """
        return

    def place(self, options: RunOptions) -> Placement:
        """Choose the device of each rank.

        Raises:
            OptionError: the requested devices are not available.
        """
        ...

    def allocate(self, folder: Path, nbytes: int, world_size: int) -> RunStorage:
        """Return storage for a bundle of ``nbytes`` bytes and for the result of each rank.

        Args:
            folder: the run folder, which need not exist yet.
            nbytes: size of the bundle; results may take more or less than that.
            world_size: number of ranks.

        Raises:
            LaunchError: there is not enough space.
        """
        ...

    def launch(self, run: Run) -> RunHandle:
        """Start the ranks of ``run`` and return at once; ranks wait for the bundle by themselves.

        Raises:
            LaunchError: they cannot be started.
        """
        ...

    def hand_on(self, held: Run, run: Run | None) -> RunHandle:
        """Let the ranks that are held since the run ``held`` run that of ``run``; None ends them.

        Only for engines that accept ``--hold``.

        Raises:
            LaunchError: they cannot be reached.
        """
        raise NotImplementedError

    def send_bundle(self, run: Run) -> None:
        """Bring the bundle, now complete in its storage, to ranks that do not see that storage."""

    def sync(self, run: Run) -> None:
        """Bring new events, logs and results to the run folder and storage of this machine.

        Called between polls by each process that follows the run, not only by the one that
        launched it.
        """

    def release(self, storage: RunStorage, in_use: bool) -> None:
        """Free storage, or keep it for the next run unless ranks are still ``in_use`` of it."""
        ...

    def missing(self) -> str:
        """Return what this machine needs to use the engine, and does not have; usually empty."""
        return ""

    def preload(self, modules: Iterable[str] = ()) -> None:
        """Prepare for runs to come, in the background: they will import ``modules``."""

    def preload_cpu_seconds(self) -> float:
        """Return the CPU time that such preparation has used on this machine so far."""
        return 0.0
