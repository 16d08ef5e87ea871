"""How far a run is: its bars, and when it may be over."""

from __future__ import annotations

from dataclasses import dataclass

from nbmgpu.runs.events import Progress
from nbmgpu.runs.view import RunView, Track

from .text_format import clock, plain

OTHERS = 3
"""The most bars shown besides the training loader's."""

LOADER = "loader"


@dataclass(frozen=True)
class Bar:
    """A progress bar: what is left and right of it, and how full it is (-1 when unknown)."""

    key: str
    label: str
    count: str
    fraction: float


def bars(view: RunView, epochs: int = 0) -> list[Bar]:
    """Return the loader's bar and the newest three of the others that are not done.

    ``epochs`` is how many there will be, 0 when that is unknown.
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
class Course:
    """How far the run is in what it has to do, as far as anybody can tell.

    ``done`` of ``whole`` steps since the time ``begun``, as of the time ``newest``; ``what``
    names the part that is meant if it is not the whole run.
    """

    done: float
    whole: float
    begun: float
    newest: float
    what: str = ""

    @property
    def fraction(self) -> float:
        """From 0 to 1."""
        return min(max(self.done / self.whole, 0.0), 1.0)


def course(view: RunView, epochs: int = 0) -> Course | None:
    """Return how far the run is, None when that is unknown.

    The outermost bar counts, which began first, and within its step the loader's.  Where
    there is only the loader, it is the number of ``epochs``; when that is unknown too, the
    epoch.
    """
    loader = view.tracks.get(LOADER)
    if loader is not None and loader.now.total <= 0:
        loader = None
    outer = _outer(view, loader)
    part = min(loader.now.step / loader.now.total, 1.0) if loader else 0.0
    newest = max((track.now.time for track in (outer, loader) if track), default=0.0)
    if outer is not None:
        done = outer.now.step - outer.begun.step + part
        return Course(done, outer.now.total - outer.begun.step, outer.begun.time, newest)
    if loader is None:
        return None
    if loader.now.epoch <= epochs:
        done = loader.now.epoch - loader.first.epoch + part
        return Course(done, epochs - loader.first.epoch + 1, loader.first.time, newest)
    what = f" in epoch {loader.now.epoch}" if loader.now.epoch else ""
    return Course(part, 1, loader.begun.time, newest, what)


def remaining(view: RunView, now: float, epochs: int = 0) -> str:
    """Return how long the run may go on: ``about 3:05 left``, or nothing when that is unknown."""
    so_far = course(view, epochs)
    if so_far is None or not 0 < so_far.done < so_far.whole or so_far.newest - so_far.begun < 1:
        return ""
    speed = so_far.done / (so_far.newest - so_far.begun)
    left = (so_far.whole - so_far.done) / speed - (now - so_far.newest)
    return f"about {clock(max(left, 0.0), tenths=False)} left{so_far.what}"


def _outer(view: RunView, loader: Track | None) -> Track | None:
    """Return the bar that began first, of those that are more than one around the loader."""
    known = [
        track
        for key, track in view.tracks.items()
        if key != LOADER and track.now.total > 0 and not track.now.done
        if loader is None or track.now.total != loader.now.total
    ]
    return min(known, key=lambda track: track.begun.time, default=None)
