"""wandb in a rank: what a cell logs is logged once, by rank 0, and nothing of it is lost.

The run that the notebook has begun is joined when the cell first asks for it, as that takes some
tenths of a second.  Other ranks have a disabled run that is called as rank 0's.  A run that the
cell begins ends with the cell: wandb would lose whatever it has not written when its process is
gone.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from nbmgpu.environment.tracker_run import LeftRun, TrackedRun, begun_here, described
from nbmgpu.rank.files import writes
from nbmgpu.rank.session import Session
from nbmgpu.rank.store import broadcast

OFFERED = (
    "run", "config", "summary", "log", "watch", "unwatch", "save", "use_artifact", "log_artifact",
    "log_model", "use_model", "link_model", "define_metric", "mark_preempting", "alert",
)  # fmt: skip
"""What the module has of its run, and refuses as long as there is none."""

FINISHING = (None, "default", "finish_previous", True)
"""Values of ``reinit`` with which a new run in a notebook ends the one before."""

ANSWERS_WITHIN = 10.0
"""Seconds; a run that the notebook has ended meanwhile never answers."""

LATE = "wandb does not answer: what the cell has logged last may be lost."


def tap(session: Session) -> None:
    """Let ranks log together as one process, unless the cell distributes by itself."""
    wandb = sys.modules["wandb"]
    if all(hasattr(wandb, name) for name in ("init", "_attach", "Run")):  # not a folder wandb/
        Tracking(session, wandb).install()


class Tracking:
    """What wandb does in this rank."""

    def __init__(self, session: Session, wandb: Any) -> None:
        """Be in the rank of ``session``, which has imported ``wandb``."""
        self.session = session
        self.trackers = session.trackers
        self.wandb = wandb
        self.joined: Any = None
        self.exit_code: int | None = None
        self._init = wandb.init
        self._refusing = {name: vars(wandb)[name] for name in OFFERED if name in vars(wandb)}

    @property
    def silent(self) -> bool:
        """Whether this rank logs nothing."""
        begun = self.trackers.begun
        other = self.session.distributes and self.session.rank > 0
        return other or (begun is not None and begun.muted)

    def install(self) -> None:
        """Stand before whatever begins a run or joins one."""
        self.wandb.init = self._noting(self._init)
        home = vars(sys.modules.get(self._init.__module__, self.wandb))  # where pickles look for it
        if home.get("init") is self._init:
            home["init"] = self.wandb.init
        self.wandb._attach = self._joining(self.wandb._attach)
        watching = sys.modules.get("wandb.integration.torch.wandb_torch")
        if watching is not None:  # which knows torch from when it watches; here hooks arrive
            vars(watching)["torch"] = torch
        self._join_at_first_use()
        self.trackers.leaving = self.leaving
        self.trackers.at_end.append(self.end)

    def _join_at_first_use(self) -> None:
        plain = vars(self.wandb).get("__getattr__")

        def get(name: str) -> Any:
            if name in self._refusing:
                self._join()
                return getattr(self.wandb, name)
            if plain is None:
                raise AttributeError(f"module 'wandb' has no attribute {name!r}")
            return plain(name)

        for name in self._refusing:
            delattr(self.wandb, name)
        self.wandb.__getattr__ = get

    def _refuse(self) -> None:
        """Let wandb refuse what needs a run, as it does before the first and after the last."""
        vars(self.wandb).update(self._refusing)

    def _join(self) -> None:
        """Join the notebook's run, if there is one and it is not joined yet."""
        if "run" in vars(self.wandb):
            return
        self._refuse()
        begun = self.trackers.begun
        if begun is None:
            return
        if self.silent or begun.disabled:
            self._disabled(begun)
        else:
            self.wandb._attach(attach_id=begun.id)

    def _disabled(self, like: TrackedRun, **given: Any) -> Any:
        """Return a run that logs nothing, and is called as another one."""
        names = {"id": like.id, "name": like.name, "project": like.project, "entity": like.entity}
        given = {"config": like.config} | given | {k: v for k, v in names.items() if v}
        run = self._init(**given | {"mode": "disabled"})
        with suppress(Exception):  # of other versions: then they have a folder of their own
            run._settings.x_files_dir = like.folder
            run._settings.resumed = like.resumed
        for name in OFFERED:
            if name != "run" and hasattr(run, name):
                setattr(self.wandb, name, getattr(run, name))
        return run

    def _noting(self, init: Any) -> Any:
        """Note what the cell begins; only rank 0's is one that is kept."""

        @functools.wraps(init)
        def noting(*args: Any, **kwargs: Any) -> Any:
            begun, reinit = self.trackers.begun, _reinit(**kwargs)
            if begun is not None and (reinit not in FINISHING or kwargs.get("id") == begun.id):
                self._join()  # which may be the one that is meant
                if kwargs.get("id") == begun.id:
                    return self.wandb.run
            if "run" not in vars(self.wandb):
                self._refuse()
            if self.silent:
                muted = begun is not None and begun.muted
                like = TrackedRun() if muted else self._rank_0s(TrackedRun)
                return self._disabled(like, **kwargs)
            with writes.apart():  # wandb's own files, of which only this rank knows
                run = init(*args, **kwargs)
            new = run is not self.joined
            if new:
                begun_here.append(run)
            about = self._rank_0s(functools.partial(described, run))
            if new and begun is not None and reinit in FINISHING and not about.disabled:
                self.exit_code = 0
            return run

        return noting

    def _rank_0s(self, describe: Callable[[], TrackedRun]) -> TrackedRun:
        """Return what rank 0 says of the run that it has begun."""
        about = describe() if self.session.rank == 0 else TrackedRun()
        return broadcast.broadcast_keyed("wandb", about) if self.session.distributes else about

    def _joining(self, attach: Any) -> Any:
        """Give the run that is joined what it does not get, and leave its end to the notebook."""

        @functools.wraps(attach)
        def joining(*args: Any, **kwargs: Any) -> Any:
            run = attach(*args, **kwargs)
            begun = self.trackers.begun
            if begun is not None and run.id == begun.id:
                self.joined = run
                update = getattr(run.config, "_update", run.config.update)  # which tells nobody
                update(begun.config, allow_val_change=True)
                with suppress(Exception):
                    run._settings.x_files_dir = begun.folder
            run.finish = run._finish = functools.partial(self._leave, run)
            return run

        return joining

    def _leave(self, run: Any, exit_code: int | None = None) -> None:
        """Let the notebook end its run: ended here it would go on there, and hang in the end."""
        _wait_for(run)
        run._is_finished = True
        if run is self.joined:
            self.exit_code = exit_code or 0
        if vars(self.wandb).get("run") is run:
            self._refuse()

    def leaving(self) -> LeftRun | None:
        """Return what the notebook is to know of its run."""
        begun, run = self.trackers.begun, self.joined
        if begun is None or begun.id is None or self.silent:
            return None
        config = dict(run.config) if run is not None else {}
        return LeftRun(begun.id, config, self.exit_code)

    def end(self, exit_code: int) -> None:
        """End what the cell has begun, and see that all it has logged is with the notebook."""
        for run in begun_here:
            try:
                with writes.apart():
                    run.finish(exit_code)
            except Exception:
                traceback.print_exc()
        if self.joined is not None and self.exit_code is None:
            _wait_for(self.joined)


def _reinit(reinit: Any = None, settings: Any = None, **_: object) -> Any:
    """Return what becomes of the run before: by the argument, the settings, the environment."""
    if reinit is None and isinstance(settings, dict):
        reinit = settings.get("reinit")
    elif reinit is None and "reinit" in getattr(settings, "model_fields_set", ()):
        reinit = settings.reinit
    return os.environ.get("WANDB_REINIT") if reinit is None else reinit


def _wait_for(run: Any) -> None:
    """Wait until all that was logged to a joined run has arrived: its answer comes after that."""
    asking = threading.Thread(target=run.status, daemon=True)
    asking.start()
    asking.join(ANSWERS_WITHIN)
    if asking.is_alive():
        print(LATE, file=sys.stderr)
