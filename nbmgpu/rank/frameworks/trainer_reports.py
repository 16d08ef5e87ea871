"""Shows what a Trainer of transformers logs: metrics as curves, progress in the panel.

No callback is added to a Trainer, as it is sent back to the notebook.  Instead the class that
calls callbacks is patched, and the classes of its progress bars and tables are silenced.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from nbmgpu.patches import PatchStack

if TYPE_CHECKING:
    from nbmgpu.rank.loss.loss_state import LossState
    from nbmgpu.rank.reporting.recorder import Recorder
    from nbmgpu.rank.session import TrainingSession

SHOWN = ("on_train_begin", "on_step_end", "on_prediction_step", "on_evaluate", "on_predict",
         "on_log", "on_train_end")  # fmt: skip
"""Methods of callbacks that show progress."""

LEFT_OUT = frozenset({"epoch", "step", "total_flos", "num_input_tokens_seen"})
"""Entries of a log that are not metrics."""

TIMINGS = ("_runtime", "_per_second", "_preparation_time")
"""Suffixes of entries of a log that are durations and rates."""


def install(session: TrainingSession) -> None:
    """Silence the tables that Trainers show in notebooks: the panel shows the same."""
    silence("transformers.utils.notebook.NotebookProgressCallback", PatchStack())


class Reports:
    """Shows what Trainers log, and the progress of evaluations, in the panel."""

    def __init__(self, recorder: Recorder, losses: LossState) -> None:
        """Report to ``recorder``; ``losses``: whether losses are recorded elsewhere."""
        self.recorder = recorder
        self.losses = losses
        self.evaluated = 0

    def install(self, patches: PatchStack) -> None:
        """Report every call of a Trainer's callbacks before it is made."""
        handler = "transformers.trainer_callback.CallbackHandler"
        for name in ("on_log", "on_prediction_step", "on_evaluate", "on_predict"):
            report = getattr(self, name)
            patches.wrap(f"{handler}.{name}", functools.partial(self._reporting, report))
        silence("transformers.trainer_callback.ProgressCallback", patches)

    def _reporting(self, report: Any, original: Any) -> Any:
        @functools.wraps(original)
        def reported(handler: Any, args: Any, state: Any, *rest: Any, **kwargs: Any) -> Any:
            report(handler, state, *rest[1:], **kwargs)
            return original(handler, args, state, *rest, **kwargs)

        return reported

    def on_log(self, handler: Any, state: Any, logs: dict[str, Any], **kwargs: Any) -> None:
        """Record logged values as curves."""
        for name, value in logs.items():
            if (shown := self._shown_as(name)) and isinstance(value, int | float):
                self.recorder.metric(shown, state.global_step, value)

    def _shown_as(self, name: str) -> str:
        if name == "train_tokens_per_second":
            return "tokens/s"
        if name == "learning_rate":
            return ""  # recorded at every step of the optimizer
        if name in ("loss", "grad_norm") and not self.losses.are_recorded:
            return ""  # recorded at every step of the Trainer
        left_out = name in LEFT_OUT or name.startswith("train_") or name.endswith(TIMINGS)
        return "" if left_out else name

    def on_prediction_step(self, handler: Any, state: Any, **kwargs: Any) -> None:
        """Update the bar of the running evaluation."""
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
        self.recorder.progress(
            "evaluation", label="evaluation", step=self.evaluated, total=total, done=done
        )


def silence(callback: str, patches: PatchStack) -> None:
    """Let a callback class that draws bars or tables do nothing."""
    for name in SHOWN:
        patches.replace(f"{callback}.{name}", _nothing)


def _nothing(callback: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
    pass
