"""Patches of wandb: what a cell logs is logged once, by rank 0, and is written before it exits.

A rank attaches to the notebook's run when the cell first uses it, as that takes some tenths of a
second.  Other ranks have a disabled run with the name of rank 0's.  A run that the cell starts is
finished with the cell: wandb would lose what it has not written when its process exits.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nbmgpu.patches import PatchStack

from .wandb_run import TrackerRun, TrackerRunUpdate, describe_run, started_in_rank

if TYPE_CHECKING:
    from .base import RankLogging

OFFERED = (
    "run", "config", "summary", "log", "watch", "unwatch", "save", "use_artifact", "log_artifact",
    "log_model", "use_model", "link_model", "define_metric", "mark_preempting", "alert",
)  # fmt: skip
"""Names that the module takes from its run, and which raise an error as long as there is none."""

FINISHING = (None, "default", "finish_previous", True)
"""Values of ``reinit`` with which a new run in a notebook finishes the previous one."""

ANSWER_TIMEOUT = 10.0
"""Seconds; a run that the notebook has finished in the meantime never answers."""

NO_ANSWER = "wandb does not respond: the last values that the cell has logged may be lost."


class WandbPatch:
    """The patches of wandb in this rank."""

    def __init__(self, rank: RankLogging, wandb: Any) -> None:
        """Patch the module ``wandb``; ``rank`` has the notebook's run."""
        self.rank = rank
        self.wandb = wandb
        self.patches = PatchStack()
        self.joined: Any = None
        self.exit_code: int | None = None
        self._init = wandb.init
        self._refusing = {name: vars(wandb)[name] for name in OFFERED if name in vars(wandb)}

    @property
    def begun(self) -> TrackerRun | None:
        """The notebook's run."""
        found: TrackerRun | None = self.rank.begun("wandb")
        return TrackerRun(disabled=True) if found is None and self.rank.muted else found

    def install(self) -> None:
        """Wrap the functions that start a run or attach to one."""
        patches = self.patches
        patches.wrap("wandb.init", self._starting)
        module = sys.modules.get(self._init.__module__, self.wandb)  # by which pickles refer to it
        if vars(module).get("init") is self._init:
            patches.replace("wandb.sdk.wandb_init.init", self.wandb.init, module)
        patches.wrap("wandb._attach", self._joining)
        watching = sys.modules.get("wandb.integration.torch.wandb_torch")
        if watching is not None:  # wandb.watch() imports torch; unpickled hooks need it before
            patches.add("wandb.integration.torch.wandb_torch.torch", sys.modules["torch"], watching)
        self._join_at_first_use()
        self.rank.leaving["wandb"] = self.leaving
        self.rank.at_exit.append(self.end)

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
            self.patches.delete(f"wandb.{name}", self.wandb)
        self.patches.add("wandb.__getattr__", get, self.wandb)

    def _refuse(self) -> None:
        """Let functions that need a run raise wandb's error, as before the first run."""
        for name, refusing in self._refusing.items():
            self.patches.add(f"wandb.{name}", refusing, self.wandb)

    def _join(self) -> None:
        """Attach to the notebook's run, unless there is none or it is attached already."""
        if "run" in vars(self.wandb):
            return
        self._refuse()
        begun = self.begun
        if begun is None:
            return
        if self.rank.silent or begun.disabled:
            self._disabled(begun)
        else:
            self.wandb._attach(attach_id=begun.id)

    def _disabled(self, like: TrackerRun, **given: Any) -> Any:
        """Return a run that logs nothing, with the name of another one."""
        names = {"id": like.id, "name": like.name, "project": like.project, "entity": like.entity}
        given = {"config": like.config} | given | {k: v for k, v in names.items() if v}
        run = self._init(**given | {"mode": "disabled"})
        with suppress(Exception):  # in other versions the run has a folder of its own
            run._settings.x_files_dir = like.folder
            run._settings.resumed = like.resumed
        for name in OFFERED:
            if name != "run" and hasattr(run, name):
                self.patches.add(f"wandb.{name}", getattr(run, name), self.wandb)
        return run

    def _starting(self, init: Any) -> Any:
        """Record the runs that the cell starts; only rank 0's is logged."""

        @functools.wraps(init)
        def starting(*args: Any, **kwargs: Any) -> Any:
            begun, reinit = self.begun, _reinit(**kwargs)
            if begun is not None and (reinit not in FINISHING or kwargs.get("id") == begun.id):
                self._join()  # it may be the one that is asked for
                if kwargs.get("id") == begun.id:
                    return self.wandb.run
            if "run" not in vars(self.wandb):
                self._refuse()
            if self.rank.silent:
                return self._disabled(self._rank_0s(TrackerRun), **kwargs)
            with self.rank.own_files():  # wandb's own files, which only this rank has
                run = init(*args, **kwargs)
            new = run is not self.joined
            if new:
                started_in_rank.append(run)
            about = self._rank_0s(functools.partial(describe_run, run))
            if new and begun is not None and reinit in FINISHING and not about.disabled:
                self.exit_code = 0
            return run

        return starting

    def _rank_0s(self, describe: Callable[[], TrackerRun]) -> TrackerRun:
        """Return rank 0's description of the run that it has started."""
        return self.rank.rank_0s("wandb", describe, TrackerRun())

    def _joining(self, attach: Any) -> Any:
        """Complete the settings of an attached run, and let the notebook finish it."""

        @functools.wraps(attach)
        def joining(*args: Any, **kwargs: Any) -> Any:
            run = attach(*args, **kwargs)
            begun = self.begun
            if begun is not None and run.id == begun.id:
                self.joined = run
                update = getattr(run.config, "_update", run.config.update)  # which sends no message
                update(begun.config, allow_val_change=True)
                with suppress(Exception):
                    run._settings.x_files_dir = begun.folder
            for name in ("finish", "_finish"):
                self.patches.add(f"wandb.Run.{name}", functools.partial(self._leave, run), run)
            return run

        return joining

    def _leave(self, run: Any, exit_code: int | None = None) -> None:
        """Let the notebook finish its run: finished here, the notebook's would hang at its end."""
        _wait_for(run)
        run._is_finished = True
        if run is self.joined:
            self.exit_code = exit_code or 0
        if vars(self.wandb).get("run") is run:
            self._refuse()

    def leaving(self) -> TrackerRunUpdate | None:
        """Return the state of the notebook's run, to be sent back."""
        begun, run = self.begun, self.joined
        if begun is None or begun.id is None or self.rank.silent:
            return None
        config = dict(run.config) if run is not None else {}
        return TrackerRunUpdate(begun.id, config, self.exit_code)

    def end(self, exit_code: int) -> None:
        """Finish the runs that the cell has started, and wait until all values have been sent."""
        for run in started_in_rank:
            try:
                with self.rank.own_files():
                    run.finish(exit_code)
            except Exception:
                traceback.print_exc()
        if self.joined is not None and self.exit_code is None:
            _wait_for(self.joined)


def _reinit(reinit: Any = None, settings: Any = None, **_: object) -> Any:
    """Return ``reinit`` from the argument, the settings or the environment."""
    if reinit is None and isinstance(settings, dict):
        reinit = settings.get("reinit")
    elif reinit is None and "reinit" in getattr(settings, "model_fields_set", ()):
        reinit = settings.reinit
    return os.environ.get("WANDB_REINIT") if reinit is None else reinit


def _wait_for(run: Any) -> None:
    """Wait until all values logged to an attached run have arrived: the run answers after that."""
    asking = threading.Thread(target=run.status, daemon=True)
    asking.start()
    asking.join(ANSWER_TIMEOUT)
    if asking.is_alive():
        print(NO_ANSWER, file=sys.stderr)
