"""The progress of a run: its bars, and the remaining time; view/words.ts translates their texts."""

from __future__ import annotations

from dataclasses import dataclass

from nbmgpu.runs.events import Progress
from nbmgpu.runs.view import ProgressTrack, RunView

from .text_format import clock, plain

OTHERS = 3
"""Maximum bars shown besides that of the training loader."""

LOADER = "loader"


@dataclass(frozen=True)
class Bar:
    """A progress bar: its label, its count, and its fraction (-1 when unknown)."""

    key: str
    label: str
    count: str
    fraction: float


def bars(view: RunView, epochs: int = 0) -> list[Bar]:
    """Return the bar of the loader and the newest three others that are not done.

    ``epochs`` is the total number, 0 when unknown.
    """
    others = [p for p in view.progress.values() if p.key != LOADER and not p.done]
    loader = [p for p in view.progress.values() if p.key == LOADER]
    return [_bar(p, epochs) for p in loader + others[-OTHERS:]]


def _bar(progress: Progress, epochs: int) -> Bar:
    label = plain(progress.label)
    if progress.epoch and label in ("", "epoch"):
        label = f"epoch {progress.epoch}"
        if progress.key == LOADER and progress.epoch <= epochs:
            label += f" of {epochs}"
    elif progress.epoch and "epoch" not in label.lower():
        label = f"epoch {progress.epoch} · {label}"
    if progress.total <= 0:
        return Bar(progress.key, label, f"{progress.step:,}", -1)
    count = f"{progress.step:,} / {progress.total:,}"
    return Bar(progress.key, label, count, min(1.0, progress.step / progress.total))


@dataclass(frozen=True)
class ProgressEstimate:
    """An estimate of the progress of a run.

    Attributes:
        done, whole: steps done since ``begun``, of how many.
        begun, newest: times of the first and the newest report, in seconds since the epoch.
        epoch_text: the part of the run that is meant; empty for all of it.
    """

    done: float
    whole: float
    begun: float
    newest: float
    epoch_text: str = ""

    @property
    def fraction(self) -> float:
        """The fraction done, from 0 to 1."""
        return min(max(self.done / self.whole, 0.0), 1.0)


def estimate_progress(view: RunView, epochs: int = 0) -> ProgressEstimate | None:
    """Return the progress of the run, None when unknown.

    It follows the outermost bar, which began first, and within its step the loader. With only a
    loader, it follows ``epochs``; if these are unknown, the current epoch.
    """
    loader = view.tracks.get(LOADER)
    if loader is not None and loader.now.total <= 0:
        loader = None
    outer = _outer(view, loader)
    part = min(loader.now.step / loader.now.total, 1.0) if loader else 0.0
    newest = max((track.now.time for track in (outer, loader) if track), default=0.0)
    if outer is not None:
        done = outer.now.step - outer.begun.step + part
        return ProgressEstimate(done, outer.now.total - outer.begun.step, outer.begun.time, newest)
    if loader is None:
        return None
    if loader.now.epoch <= epochs:
        done = loader.now.epoch - loader.first.epoch + part
        return ProgressEstimate(done, epochs - loader.first.epoch + 1, loader.first.time, newest)
    epoch_text = f" in epoch {loader.now.epoch}" if loader.now.epoch else ""
    return ProgressEstimate(part, 1, loader.begun.time, newest, epoch_text)


def remaining(view: RunView, now: float, epochs: int = 0) -> str:
    """Return the remaining time, ``about 3:05 left``, or nothing when unknown."""
    estimate = estimate_progress(view, epochs)
    if (
        estimate is None
        or not 0 < estimate.done < estimate.whole
        or estimate.newest - estimate.begun < 1
    ):
        return ""
    speed = estimate.done / (estimate.newest - estimate.begun)
    left = (estimate.whole - estimate.done) / speed - (now - estimate.newest)
    return f"about {clock(max(left, 0.0), tenths=False)} left{estimate.epoch_text}"


def _outer(view: RunView, loader: ProgressTrack | None) -> ProgressTrack | None:
    """Return the bar that began first, other than one that duplicates the loader's."""
    known = [
        track
        for key, track in view.tracks.items()
        if key != LOADER and track.now.total > 0 and not track.now.done
        if loader is None or track.now.total != loader.now.total
    ]
    return min(known, key=lambda track: track.begun.time, default=None)
