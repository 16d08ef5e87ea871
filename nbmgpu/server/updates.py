"""Computes the changes of runs and devices since the last update that a client received."""

from __future__ import annotations

import dataclasses

from nbmgpu.report.run_line import RunLine

from .payloads import RunList, Update
from .services import Services


class UpdateReader:
    """Computes updates for one client and remembers what was sent to it."""

    def __init__(self, services: Services) -> None:
        """Start with a client that has received nothing."""
        self._services = services
        self._runs: dict[str, RunLine] = {}
        self._last: Update | None = None

    def read(self) -> Update | None:
        """Return what changed since the last call, or None if nothing did."""
        try:
            found = self._services.lines.newest()
        except OSError:  # reported in problems; runs that cannot be read are not removed runs
            found = RunList(list(self._runs.values()), bool(self._last and self._last.more))
        update = Update(
            devices=self._services.devices.read(),
            runs=[line for line in found.runs if self._runs.get(line.id) != line],
            gone=self._gone(found),
            more=found.more,
            problems=self._services.problems(),
        )
        self._runs = {line.id: line for line in found.runs}
        if self._last and dataclasses.replace(self._last, runs=[], gone=[]) == update:
            return None
        self._last = update
        return update

    def _gone(self, found: RunList) -> list[str]:
        """Return ids of removed runs; runs that newer ones pushed out of the list still exist."""
        there = {line.id for line in found.runs}
        oldest = found.runs[-1].id if found.more and found.runs else ""
        return [name for name in self._runs if name not in there and name > oldest]
