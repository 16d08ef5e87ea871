"""Runs an idiom on one device and on ranks, from the same start, and compares what both leave.

One device is plain ``exec`` in this process; the ranks are those of ``nbmgpu.run``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import nbmgpu
from nbmgpu.environment import random_state
from nbmgpu.runs.event_file import EventTail
from nbmgpu.runs.events import Progress

from .differences import Differences, difference
from .idiom import Idiom
from .notebook import (
    PRELUDE,
    execute_alone,
    notebook,
    on_ranks,
    working_directory,
)

QUIET = {"rank-0-values", "idle-stages"}
"""Topics that any cell may be given: its last batch is rank 0's, and stages of pp wait."""


@dataclass
class Comparison:
    """What a notebook holds after its cell has run: ``alone`` on one device, ``ranks`` on ranks.

    Attributes:
        error: the largest difference of two numbers.
        wrong: one line for each difference that exceeds the idiom's tolerances.
    """

    run: nbmgpu.Run
    alone: dict[str, Any]
    ranks: dict[str, Any]
    error: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @property
    def notices(self) -> set[str]:
        """The topics of the run's notices, without those of the machine and its libraries."""
        return set(self.run.view.notices) - {"devices", "library-version"} - QUIET

    def split(self) -> bool:
        """Return whether rank 1 had a shard of the batches of some loader."""
        events = EventTail(self.run.folder / "events" / "rank-1.jsonl").read()
        return any(isinstance(e, Progress) and e.key == "loader" for e in events)

    def difference(self, name: str = "model") -> float:
        """Return the largest difference of the numbers that the variable ``name`` holds."""
        return difference(self.alone[name], self.ranks[name])

    def assert_equal(self, known: str = "") -> None:
        """Fail with what is wrong, but for a line that has the text ``known``: it must be there."""
        unknown = [line for line in self.wrong if not known or known not in line]
        assert not unknown, "\n".join(unknown[:20])
        assert not known or self.wrong, f"it is equal now: remove {known} from the table"


def run_both(
    cell: str,
    setup: str = "",
    ranks: int = 2,
    *,
    alone: tuple[str, str] | None = None,
    prelude: str = PRELUDE,
    folder: Path | None = None,
    **options: Any,
) -> Comparison:
    """Run a cell on one device and on ranks; compare nothing yet.

    Args:
        cell: runs on ranks.
        setup: cells of the notebook before it, run in this process.
        ranks: their number.
        alone: cell and setup of one device, where they are others.
        prelude: the notebook's first cell.
        folder: has one working directory for each side, ``alone`` and ``ranks``.
        options: of ``nbmgpu.run``.
    """
    here, before = alone or (cell, setup)
    with working_directory(folder and folder / "alone"):
        expected = notebook(before, prelude=prelude)
        execute_alone(here, expected)
    with working_directory(folder and folder / "ranks"):
        found = notebook(setup, prelude=prelude)
        run = nbmgpu.run(cell, found, **on_ranks(ranks, options))
    return Comparison(run, expected, found)


def compare(
    idiom: Idiom, ranks: int = 2, *, of_whole_batch: bool = False, **options: Any
) -> Comparison:
    """Run ``idiom`` on one device and on ``ranks``, and compare all that they leave.

    Args:
        idiom: what runs.
        ranks: their number.
        of_whole_batch: whether the cell sees whole batches: then no name is local to a rank, and
            only those are left out that no cell brings back.
        options: of ``nbmgpu.run``.
    """
    alone = notebook(idiom.setup)
    execute_alone(idiom.cell, alone)
    random_alone = random_state.capture()

    found = notebook(idiom.setup)
    own = dict(found)
    run = nbmgpu.run(idiom.cell, found, **on_ranks(ranks, options))
    random_ranks = random_state.capture()

    result = Comparison(run, alone, found)
    local = {"_", "bar"} if of_whole_batch else idiom.rank_local
    names = [n for n in alone if not n.startswith("__") and n not in local]
    for name in names:
        if name in found:
            _compare(result, idiom, name, alone[name], found[name])
        elif not hasattr(alone[name], "__next__"):
            result.wrong.append(f"{name}: not in the notebook after the run")
    kept = (nn.Module, torch.optim.Optimizer, DataLoader)
    bound = {n for n in names if isinstance(own.get(n), kept) and alone[n] is not None}
    result.wrong += [
        f"{name}: another object than before"
        for name in bound
        if name in found and found[name] is not own[name] and not _rebinds(idiom.cell, name)
    ]
    for kind in ("python", "numpy", "torch"):
        a, b = getattr(random_alone, kind), getattr(random_ranks, kind)
        _compare(result, idiom, f"random state of {kind}", a, b)
    _compare_curve(result, idiom)
    return result


def compare_whole_batches(cell: Idiom, ranks: int = 2, **options: Any) -> Comparison:
    """Compare a cell that sees whole batches, with the rounding of sums computed in parts."""
    tolerant = replace(cell, rtol=5 * cell.rtol, atol=5 * cell.atol)
    return compare(tolerant, ranks, of_whole_batch=True, **options)


def assert_equal(
    idiom: Idiom, ranks: int = 2, *, notices: str | None = None, **options: Any
) -> Comparison:
    """Compare, and fail with what differs; with ``notices``, these topics alone must be given."""
    result = compare(idiom, ranks, **options)
    result.assert_equal()
    if notices is not None:
        assert result.notices == set(notices.split())
    return result


def _rebinds(cell: str, name: str) -> bool:
    return any(line.strip().startswith((f"{name} =", f"{name}, ")) for line in cell.splitlines())


def _compare(result: Comparison, idiom: Idiom, path: str, a: Any, b: Any) -> None:
    differences = Differences(idiom.rtol, idiom.atol)
    differences.compare(path, a, b)
    result.wrong += differences.found
    result.error = max(result.error, differences.error)


def _compare_curve(result: Comparison, idiom: Idiom) -> None:
    """Compare the curve of the run with the losses that the cell gathered, one a step."""
    losses = result.alone["losses"]
    curve = result.run.view.curves.get("loss")
    if idiom.curve and curve and len(curve) == len(losses) and isinstance(losses[0], float):
        _compare(result, idiom, "curve of the loss", losses, curve.arrays()[1].tolist())
