"""What a Trainer of transformers shows: its metrics on curves, its progress in the panel.

No callback is added to a Trainer, for it travels back to the notebook: what is met are the
class that calls callbacks, and the classes of its own progress bars and tables.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from nbmgpu.rank.session import Session

SHOWN = ("on_train_begin", "on_step_end", "on_prediction_step", "on_evaluate", "on_predict",
         "on_log", "on_train_end")  # fmt: skip
"""What callbacks that show progress answer to."""

LEFT_OUT = frozenset({"epoch", "step", "total_flos", "num_input_tokens_seen"})
"""Entries of a log that are no metrics."""


def tap(session: Session) -> None:
    """Let the tables that Trainers show in notebooks be none: the panel shows it all."""
    mute(sys.modules["transformers.utils.notebook"].NotebookProgressCallback)


OF_CLOCKS = ("_runtime", "_per_second", "_preparation_time")


class Reports:
    """Tells the panel what Trainers log, and how far evaluations are."""

    def __init__(self, session: Session) -> None:
        """Report for ``session``."""
        self.session = session
        self.evaluated = 0

    def install(self, module: Any) -> None:
        """Stand before the callbacks of ``module``, which is transformers.trainer_callback."""
        handler = module.CallbackHandler
        for name in ("on_log", "on_prediction_step", "on_evaluate", "on_predict"):
            setattr(handler, name, self._told(getattr(handler, name), getattr(self, name)))
        mute(module.ProgressCallback)

    def _told(self, original: Any, tell: Any) -> Any:
        @functools.wraps(original)
        def told(handler: Any, args: Any, state: Any, *rest: Any, **kwargs: Any) -> Any:
            tell(handler, state, *rest[1:], **kwargs)
            return original(handler, args, state, *rest, **kwargs)

        return told

    def on_log(self, handler: Any, state: Any, logs: dict[str, Any], **kwargs: Any) -> None:
        """Put what is logged on curves."""
        for name, value in logs.items():
            if (shown := self._shown_as(name)) and isinstance(value, int | float):
                self.session.recorder.metric(shown, state.global_step, value)

    def _shown_as(self, name: str) -> str:
        if name == "train_tokens_per_second":
            return "tokens/s"
        if name == "learning_rate":
            return ""  # drawn at every step of the optimizer
        if name in ("loss", "grad_norm") and not self.session.draws_losses:
            return ""  # drawn at every step of the Trainer
        left_out = name in LEFT_OUT or name.startswith("train_") or name.endswith(OF_CLOCKS)
        return "" if left_out else name

    def on_prediction_step(self, handler: Any, state: Any, **kwargs: Any) -> None:
        """Move the bar of the evaluation under way."""
        self.evaluated += 1
        try:
            total = len(handler.eval_dataloader)
        except TypeError:
            total = 0
        self._progress(total)

    def on_evaluate(self, handler: Any, state: Any, *args: Any, **kwargs: Any) -> None:
        """End the bar of the evaluation."""
        self._progress(self.evaluated, done=True)
        self.evaluated = 0

    on_predict = on_evaluate

    def _progress(self, total: int, done: bool = False) -> None:
        self.session.recorder.progress(
            "evaluation", label="evaluation", step=self.evaluated, total=total, done=done
        )


def mute(kind: Any) -> None:
    """Let a callback that draws bars or tables do nothing."""
    for name in SHOWN:
        if name in vars(kind):
            setattr(kind, name, _nothing)


def _nothing(callback: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
    pass
