"""What has changed on the machine since one listener was told last."""

from __future__ import annotations

import dataclasses

from nbmgpu.report.run_line import RunLine

from .payloads import News, RunList
from .services import Services


class NewsReader:
    """Looks for one listener, and remembers what that one knows."""

    def __init__(self, services: Services) -> None:
        """Have told nothing yet."""
        self._services = services
        self._runs: dict[str, RunLine] = {}
        self._last: News | None = None

    def look(self) -> News | None:
        """Return what the listener does not know yet, or None if that is nothing."""
        try:
            found = self._services.lines.newest()
        except OSError:  # the problems say it; what nobody can read is not gone for that
            found = RunList(list(self._runs.values()), bool(self._last and self._last.more))
        news = News(
            devices=self._services.meters.read(),
            runs=[line for line in found.runs if self._runs.get(line.id) != line],
            gone=self._gone(found),
            more=found.more,
            problems=self._services.problems(),
        )
        self._runs = {line.id: line for line in found.runs}
        if self._last and dataclasses.replace(self._last, runs=[], gone=[]) == news:
            return None
        self._last = news
        return news

    def _gone(self, found: RunList) -> list[str]:
        """Return runs that were told and are no more; one that newer ones pushed out is still."""
        there = {line.id for line in found.runs}
        oldest = found.runs[-1].id if found.more and found.runs else ""
        return [name for name in self._runs if name not in there and name > oldest]
