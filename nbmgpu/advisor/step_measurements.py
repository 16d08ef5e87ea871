"""Activations of a step of one model, measured once for each batch size and division."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from .interval import Interval

if TYPE_CHECKING:
    from torch import nn

    from nbmgpu.strategies.strategy_options import Precision

    from .activations import Activations
    from .model_parts import ModelParts


class StepMeasurements:
    """Measures activations, by fake steps or by a formula.

    Attributes:
        failure: why the model does not run on fake tensors; usually empty.
    """

    def __init__(self, model: nn.Module, batch: Any, gradients: int) -> None:
        """Measure steps of ``model`` with batches like ``batch``; None if there is none.

        Args:
            model: the model.
            batch: an example batch.
            gradients: bytes of all gradients.
        """
        self._model = model
        self._batch = batch
        self._gradients = gradients
        self._found: dict[Any, Activations | None] = {}
        self.failure = ""

    def measure(
        self,
        samples: int,
        precision: Precision | None,
        checkpointing: bool,
        parts: Collection[ModelParts],
    ) -> None:
        """Measure steps on ranks that have ``parts`` of the model, in one pass.

        Args:
            samples: number of samples on a rank.
            precision: as in ``--precision``.
            checkpointing: whether activations are recomputed.
            parts: what a rank has, in each case.
        """
        new = [
            each
            for each in dict.fromkeys(parts)
            if (samples, precision, checkpointing, each) not in self._found
        ]
        if not new or self._batch is None:
            return
        found = self._by_fake_steps(samples, precision, checkpointing, new)
        for each, activations in zip(new, found, strict=True):
            self._found[samples, precision, checkpointing, each] = activations

    def activations(
        self, samples: int, precision: Precision | None, checkpointing: bool, parts: ModelParts
    ) -> Activations | None:
        """Return the activations of a step; None if unknown.  The arguments are as above."""
        self.measure(samples, precision, checkpointing, [parts])
        return self._found.get((samples, precision, checkpointing, parts))

    def _by_fake_steps(
        self,
        samples: int,
        precision: Precision | None,
        checkpointing: bool,
        parts: list[ModelParts],
    ) -> list[Activations | None]:
        """Run a fake step, or use the formula where the model does not run on fake tensors."""
        from .activations import from_fake_step, from_formula
        from .fake_step import FakeStepError, run_divided

        try:
            steps = run_divided(self._model, self._batch, samples, parts, precision, checkpointing)
        except FakeStepError as error:
            self.failure = f"the model does not run on fake tensors ({error})"
            whole = from_formula(
                self._model, self._batch, samples, self._gradients, precision, checkpointing
            )
            return [None if whole is None else _divided(whole, each) for each in parts]
        return [from_fake_step(step) for step in steps]


def _divided(whole: Activations, parts: ModelParts) -> Activations:
    """Return activations of which a rank has at least the smallest fraction of any region."""
    least = min(parts.regions.values(), default=1.0)

    def lower(size: Interval) -> Interval:
        return Interval(size.low * least, size.high)

    return dataclasses.replace(
        whole,
        saved=lower(whole.saved),
        peak=lower(whole.peak),
        peak_with_gradients=lower(whole.peak_with_gradients),
        uncast_saved=lower(whole.uncast_saved),
        uncast_peak=lower(whole.uncast_peak),
        all_messages=None,
    )
