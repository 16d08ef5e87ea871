"""Frames of an exception are saved in bounded time and size, whatever their variables are."""

from __future__ import annotations

import pickle
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nbmgpu.rank.reporting import frame_capture
from nbmgpu.rank.reporting.frame_capture import INNERMOST, OUTERMOST, save_frames
from nbmgpu.runs.post_mortem import PostMortem
from nbmgpu.runs.stacks import CELL_FILE_MARK


class Sleeps:
    def __reduce__(self) -> Any:
        time.sleep(60)
        return int, ()


class Exits:
    def __reduce__(self) -> Any:
        raise SystemExit(3)


def saved(tmp_path: Path, cell: str, **names: Any) -> PostMortem:
    """Run a cell that raises an exception, save its frames, and read them."""
    namespace = {"__name__": "__main__", **names}
    path = tmp_path / "post-mortem" / "rank-0"
    try:
        exec(compile(cell, f"<{CELL_FILE_MARK}-1>", "exec"), namespace)
    except (ValueError, RecursionError) as error:
        save_frames(path, error, lambda name: name.startswith("__"), world_size=1)
    found = pickle.loads(path.read_bytes())
    assert isinstance(found, PostMortem)
    return found


INSIDE = "def inside(value):\n    raise ValueError\ninside(value)"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Exits, "<not saved: Exits: SystemExit(3)>"),
        (lambda: torch.zeros(20 << 20), "<not saved: Tensor, float32, shape (20971520,), on cpu"),
        (lambda: list(range(20 << 20)), "<not saved: list: too large>"),
        (Path(__file__).open, "<not saved: TextIOWrapper: a file>"),
        (lambda: (n for n in range(3)), "<not saved: generator: TypeError"),
    ],
)
def test_what_cannot_be_saved_is_described(
    tmp_path: Path, make: Callable[[], Any], text: str
) -> None:
    value = make()
    *_, frame = saved(tmp_path, INSIDE, value=value).frames
    assert repr(frame.values()["value"]).startswith(text)
    if hasattr(value, "close"):
        value.close()


def test_a_value_that_blocks_ends_the_saving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_capture, "SECONDS", 0.2)
    cell = "def inside(first, value):\n    raise ValueError\ninside(1, value)"
    before = time.monotonic()
    cell_frame, frame = saved(tmp_path, cell, value=Sleeps()).frames
    assert time.monotonic() - before < 30
    assert frame.values() == {"first": 1}
    assert cell_frame.variables == {}
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_an_object_in_many_frames_is_pickled_once(tmp_path: Path) -> None:
    calls: list[int] = []

    class Counts:
        def __reduce__(self) -> Any:
            calls.append(1)
            return int, ()

    body = "    if not n: raise ValueError\n    inside(n - 1, value)\n"
    cell = f"def inside(n, value):\n{body}inside(9, value)"
    found = saved(tmp_path, cell, value=Counts())
    assert len(found.frames) == 11
    assert len(calls) == 1
    assert all(frame.values()["value"] == 0 for frame in found.frames)


def test_both_ends_of_a_recursion_are_saved(tmp_path: Path) -> None:
    found = saved(tmp_path, "def inside(n):\n    inside(n + 1)\ninside(0)")
    assert len(found.frames) == INNERMOST + OUTERMOST
    numbers = [frame.values().get("n", -1) for frame in found.frames]
    assert numbers[:OUTERMOST] == list(range(-1, OUTERMOST - 1))
    assert numbers == sorted(numbers)


def test_gradients_and_parameters_stay_with_their_tensors(tmp_path: Path) -> None:
    layer = torch.nn.Linear(2, 2)
    layer(torch.ones(2)).sum().backward()
    *_, frame = saved(tmp_path, INSIDE, value=layer).frames
    copy = frame.values()["value"]
    assert isinstance(copy.weight, torch.nn.Parameter)
    assert torch.equal(copy.weight, layer.weight)
    assert torch.equal(copy.weight.grad, layer.weight.grad)
