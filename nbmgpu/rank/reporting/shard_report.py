"""Reports which parameters this rank stores, by layer, when the strategy has prepared a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmgpu.runs.events import ParameterShards

from .layers import layers_of

if TYPE_CHECKING:
    from nbmgpu.runs.event_file import EventWriter
    from nbmgpu.strategies.base import Strategy, Unit


class ShardReport:
    """Emits ``ParameterShards`` if the strategy shards parameters: otherwise each rank has all."""

    def __init__(self, strategy: Strategy, events: EventWriter) -> None:
        """Report what ``strategy`` stores to ``events``."""
        self._strategy = strategy
        self._events = events
        self._applies = strategy.shards_parameters and strategy.world_size > 1
        self._may_change = False
        self._last: dict[str, list[object]] = {}

    def begin_run(self, events: EventWriter, units: list[Unit]) -> None:
        """Report to the ``events`` of the next run what ``units`` still store."""
        self._events, self._last = events, {}
        if units:
            self.update(units)

    def update(self, units: list[Unit]) -> None:
        """Report the parameters of ``units``, which the strategy has prepared."""
        if self._applies:
            self._emit(units)
            self._may_change = True

    def after_step(self, units: list[Unit]) -> None:
        """Report anew after the first step: modules that awaited it are sharded only then.

        Also after later ones, while the strategy may move parameters.
        """
        if self._may_change:
            self._may_change = self._strategy.may_move_parameters
            self._emit(units)

    def _emit(self, units: list[Unit]) -> None:
        layers = layers_of(units)
        stored = {name: [self._strategy.local_numel(p) for p in ps] for name, ps in layers.items()}
        fields: dict[str, list[object]] = {
            "layers": list(layers),
            "elements": [sum(p.numel() for p in ps) for ps in layers.values()],
            "stored": [sum(numbers) for numbers in stored.values()],
            "nbytes": [
                sum(n * p.element_size() for n, p in zip(stored[name], ps, strict=True))
                for name, ps in layers.items()
            ],
        }
        if fields != self._last:
            self._last = fields
            self._events.emit(ParameterShards, **fields)
