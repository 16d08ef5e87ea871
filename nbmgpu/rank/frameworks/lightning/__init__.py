"""Patches of Lightning: its Trainer trains on one device, and nbmgpu distributes its loops.

A Trainer that is made in the notebook or in the cell stays a single-device Trainer, unaware of
the process group.  Its loops read a DataLoader that is split, and call ``backward`` and ``step``
like a plain loop.  The patches

- decide which of its loops train (``_trains``);
- keep Trainers on the rank's device, and refuse those that distribute (``trainers``);
- begin the steps of batches that were read ahead (``fetchers``), and end their passes
  with the epoch (``training``);
- let evaluations draw the notebook's random numbers, the same on all ranks
  (``evaluation``);
- write and resume checkpoints (``checkpoints``);
- write Lightning's files once, and use rank 0's decisions (``files``);
- reduce the values that training steps log, and show them as curves (``values``);
- disable its progress bars, as the panel shows progress.

The library has two names, ``lightning.pytorch`` and ``pytorch_lightning``, which are two copies
of the same code.  Both are patched.
"""

from __future__ import annotations

import functools
import sys
import types
import warnings
from typing import TYPE_CHECKING

from nbmgpu.rank.source_analysis import training_loops

from .checkpoints import CheckpointPatch
from .evaluation import EvaluationPatch
from .fetchers import FetcherPatch
from .files import Coordination
from .library import LightningLibrary
from .trainers import SingleDevicePatch, refuse_trainers
from .training import TrainingPatch
from .values import LoggedValues

if TYPE_CHECKING:
    from nbmgpu.rank.session import TrainingSession

PACKAGES = ("lightning.pytorch", "pytorch_lightning")

_patched: set[str] = set()


def install(session: TrainingSession) -> None:
    """Patch the copies of Lightning that have been imported, each once.

    Under ``--strategy none`` Lightning finds the environment that torchrun would give it,
    and distributes by itself.
    """
    for package in PACKAGES:
        if hasattr(sys.modules.get(package), "Trainer") and package not in _patched:
            _patched.add(package)
            # A rank need not be a task of Slurm, whatever is installed on the machine.
            warnings.filterwarnings("ignore", "The `srun` command is available")
            if session.strategy.profile.shards_data:
                _patch(session, LightningLibrary(package))
            elif reason := session.strategy.refuses_lightning:
                refuse_trainers(session.strategy.profile.name, reason, LightningLibrary(package))
            else:  # a rank has IPython's shell, but is not a notebook
                connector = "trainer.connectors.accelerator_connector"
                LightningLibrary(package).replace(f"{connector}._IS_INTERACTIVE", False)


def _patch(session: TrainingSession, library: LightningLibrary) -> None:
    """Install all patches of ``library``, for the rest of this process."""
    rank_info, progress, recorder = session.rank_info, session.progress, session.recorder
    strategy = session.strategy
    coordination = Coordination(rank_info.rank, library, strategy.join_save)
    accumulation = session.step_options.accumulation
    fetchers = FetcherPatch(session.loader_events, library)
    training_loops.library_checks.append(functools.partial(_trains, library))
    SingleDevicePatch(strategy.device, accumulation, coordination, library).install()
    fetchers.install()
    TrainingPatch(session.trained.registry, recorder, fetchers, library).install()
    EvaluationPatch(progress, session.streams, recorder, library).install()
    _disable_bars(library)
    coordination.install()
    CheckpointPatch(library).install()
    LoggedValues(rank_info, progress, session.losses, recorder, strategy.device, library).install()


def _trains(library: LightningLibrary, frame: types.FrameType | None) -> bool | None:
    """Return whether a loop of Lightning that begins in ``frame`` trains; None for others."""
    fit, epoch = library.of("loops.fit_loop"), library.of("loops.training_epoch_loop")
    loop_class = library.of("loops.loop")._Loop
    while frame is not None and frame.f_globals.get("__name__", "").startswith(library.package):
        loop = frame.f_locals.get("self")
        if isinstance(loop, loop_class):
            training = isinstance(loop, fit._FitLoop | epoch._TrainingEpochLoop)
            # Without backward passes it only reads data, such as for the batch statistics
            # of averaged weights.
            return training and not loop.trainer.fit_loop._skip_backward
        frame = frame.f_back
    return None


def _disable_bars(library: LightningLibrary) -> None:
    """Disable Lightning's progress bars: the panel shows progress."""
    for bar in ("TQDMProgressBar", "RichProgressBar"):
        library.replace(f"callbacks.{bar}.is_enabled", property(lambda bar: False))
