"""The folders that TensorBoard shows."""

from __future__ import annotations

from dataclasses import dataclass

from nbmgpu.report.tensorboard_folders import shown_folders, tensorboard_command

from .base import PanelView, RunMoment


@dataclass(frozen=True)
class TensorBoardItem:
    """A folder of event files.

    Attributes:
        place: its place among all folders of the run, as in the server's route.
        folder: its path.
        command: the command for a terminal that shows it.
    """

    place: int
    folder: str
    command: str


class TensorBoardView(PanelView):
    """The folders to which the run logs for TensorBoard."""

    def payload(self, moment: RunMoment) -> list[TensorBoardItem]:
        """Return the folders; those in another one are shown with it."""
        return [
            TensorBoardItem(place, folder, tensorboard_command(folder))
            for place, folder in shown_folders(moment.view.tensorboard).items()
        ]
