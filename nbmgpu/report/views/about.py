"""The options of a run."""

from __future__ import annotations

from dataclasses import dataclass

from nbmgpu.report import text_format

from .base import PanelView, RunMoment


@dataclass(frozen=True)
class About:
    """The options of the run; ``created`` is in seconds since the epoch.

    ``verified`` says how many steps were compared with one device; empty if none.
    """

    id: str
    name: str
    headline: str
    strategy: str
    world_size: int
    devices: str
    batch: str
    verified: str
    folder: str
    notebook: str
    created: float
    note: str


class AboutView(PanelView):
    """The options of the run."""

    def payload(self, moment: RunMoment) -> About:
        """Return the options as text."""
        run, record = moment.run, moment.run.record
        return About(
            id=run.id,
            name=text_format.plain(run.labels.name),
            headline=text_format.headline(record),
            strategy=text_format.plain(record.options.strategy),
            world_size=record.world_size,
            devices=text_format.device_names(record.devices),
            batch=text_format.batch_line(run),
            verified=text_format.verified(run.view),
            folder=str(run.folder),
            notebook=text_format.plain(record.kernel.notebook),
            created=record.created,
            note=text_format.plain(run.labels.note),
        )
