"""wandb in a rank: what a cell logs is logged once, by rank 0, and nothing of it is lost.

The run that the notebook has begun is joined when the cell first asks for it, as that takes some
tenths of a second.  Other ranks have a disabled run with its config.  A run that the cell begins
ends with the cell: wandb would lose whatever it has not written when its process is gone.
"""

from __future__ import annotations

import functools
import sys
import traceback
from typing import Any

from nbmgpu.rank.session import Session
from nbmgpu.tracking import begun_here

OFFERED = (
    "run", "config", "summary", "log", "watch", "unwatch", "save", "use_artifact", "log_artifact",
    "log_model", "use_model", "link_model", "define_metric", "mark_preempting", "alert",
)  # fmt: skip
"""What the module has of its run, and refuses as long as there is none."""

FINISHING = ("default", "finish_previous", True)
"""Values of ``reinit`` with which a new run in a notebook ends the one before."""


def tap(session: Session) -> None:
    """Let ranks log together as one process, unless the cell distributes by itself."""
    Tracking(session, sys.modules["wandb"]).install()


class Tracking:
    """What wandb does in this rank."""

    def __init__(self, session: Session, wandb: Any) -> None:
        """Be in the rank of ``session``, which has imported ``wandb``."""
        self.trackers = session.trackers
        self.wandb = wandb
        self.silent = session.distributes and session.rank > 0
        self._init = wandb.init
        self._refusing = {name: vars(wandb)[name] for name in OFFERED if name in vars(wandb)}

    def install(self) -> None:
        """Stand before whatever begins a run or joins one."""
        self.wandb.init = self._noting(self.wandb.init)
        self.wandb._attach = self._joining(self.wandb._attach)
        self._join_at_first_use()
        self.trackers.at_end.append(self.end)

    def _join_at_first_use(self) -> None:
        plain = self.wandb.__getattr__

        def get(name: str) -> Any:
            if name not in self._refusing:
                return plain(name)
            self._refuse()
            self._join()
            return getattr(self.wandb, name)

        for name in self._refusing:
            delattr(self.wandb, name)
        self.wandb.__getattr__ = get

    def _refuse(self) -> None:
        """Let wandb refuse what needs a run, as it does before the first and after the last."""
        vars(self.wandb).update(self._refusing)

    def _join(self) -> None:
        tracked = self.trackers.begun
        if tracked is None:
            return
        if self.silent or not tracked.id:
            self._init(mode="disabled", config=tracked.config)
        else:
            self.wandb._attach(attach_id=tracked.id)

    def _noting(self, init: Any) -> Any:
        """Note what the cell begins; only rank 0's is one that is kept."""

        @functools.wraps(init)
        def noting(*args: Any, **kwargs: Any) -> Any:
            if self.silent:
                kwargs["mode"] = "disabled"
            if "run" not in vars(self.wandb):
                self._refuse()
            if self.trackers.begun is not None and kwargs.get("reinit", "default") in FINISHING:
                self.trackers.ended = self.trackers.ended or 0
            run = init(*args, **kwargs)
            begun_here.append(run)
            return run

        return noting

    def _joining(self, attach: Any) -> Any:
        """Give the run that is joined its config, and leave its end to the notebook."""

        @functools.wraps(attach)
        def joining(*args: Any, **kwargs: Any) -> Any:
            run = attach(*args, **kwargs)
            tracked = self.trackers.begun
            if tracked is not None and run.id == tracked.id:
                run.config.update(tracked.config, allow_val_change=True)
                run.finish = run._finish = functools.partial(self._leave, run)
            return run

        return joining

    def _leave(self, run: Any, exit_code: int | None = None) -> None:
        """Let the notebook end its run: ended here it would go on there, and hang in the end."""
        self.trackers.ended = exit_code or 0
        run.status()
        self._refuse()

    def end(self, exit_code: int) -> None:
        """End what the cell has begun, and see that all it has logged is with the notebook."""
        try:
            for run in begun_here:
                run.finish(exit_code)
            run = vars(self.wandb).get("run")
            if run is not None:
                run.status()  # an answer comes when all before it has arrived
        except Exception:
            traceback.print_exc()
