"""``%mgpu debug``: the debugger of IPython in the frames of a rank that raised an exception."""

from __future__ import annotations

import reprlib
import sys
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from IPython.core.display_trap import DisplayTrap
from IPython.core.error import StdinNotImplementedError

from nbmgpu.errors import OptionError, RankError, format_message
from nbmgpu.runs.failure import unpickled_error
from nbmgpu.runs.post_mortem import PostMortem, load_post_mortem, saved_ranks
from nbmgpu.runs.run import Run
from nbmgpu.runs.run_list import find_run, iter_runs

from .rebuilt_traceback import is_hidden, rebuilt_traceback

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

USAGE = "%mgpu debug [RUN] [--rank N]"

VALUES = reprlib.Repr()
VALUES.maxother = VALUES.maxstring = 200


@dataclass(frozen=True)
class DebugCommand:
    """What to look into.

    Attributes:
        run: the beginning of a run's id; empty for the newest that has something.
        rank: None for the one whose exception the notebook has shown.
    """

    run: str = ""
    rank: int | None = None

    @classmethod
    def parse(cls, rest: str) -> DebugCommand:
        """Parse the words after ``debug``.

        Raises:
            OptionError: they are not a run and a rank.
        """
        words = rest.replace("=", " ").split()
        rank = None
        if "--rank" in words:
            at = words.index("--rank")
            number = words[at + 1] if at + 1 < len(words) else ""
            if not number.isdecimal():
                what = f"%mgpu debug --rank needs the number of a rank, not {number!r}"
                raise OptionError(format_message(what, instead="%mgpu debug --rank 1"))
            rank = int(number)
            del words[at : at + 2]
        if len(words) > 1 or any(word.startswith("-") for word in words):
            what = f"%mgpu debug does not take {' '.join(words)}"
            raise OptionError(format_message(what, instead=USAGE))
        return cls("".join(words), rank)


def debug_in(shell: InteractiveShell, rest: str) -> None:
    """Open the debugger in the frames that the words ``rest`` name.

    Where the front end has no input, as in nbconvert, print their variables instead.

    Raises:
        OptionError: there are none.
    """
    command = DebugCommand.parse(rest)
    run = find_run(command.run) if command.run else _newest()
    rank, saved = load_post_mortem(run, command.rank)
    failure = run.view.ranks[rank].failure
    error: BaseException = RankError(f"{run.rank_name(rank)} has failed")
    if failure is not None:
        error = unpickled_error(run, failure) or RankError(f"{failure.type}: {failure.message}")
    traceback = rebuilt_traceback(saved, shell.user_ns)
    # As IPython does after an exception, so that %debug opens it again.
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, traceback
    print(f"{run.rank_name(rank)} of run {run.id} raised {type(error).__name__}: {error}")
    print("Variables are copies: changing them changes nothing. h lists commands, q ends.")
    try:
        _interact(shell, traceback)
    except StdinNotImplementedError:
        print(_variables_text(saved))


def _interact(shell: InteractiveShell, traceback: TracebackType) -> None:
    debugger = shell.debugger_cls()
    debugger.reset()
    debugger.botframe = traceback.tb_frame
    with DisplayTrap(hook=sys.__displayhook__):  # p and expressions print, and are no output
        debugger.interaction(None, traceback)


def _variables_text(saved: PostMortem) -> str:
    """Return the variables of each frame, for front ends without input."""
    parts = []
    for frame in saved.frames:
        if is_hidden(frame, saved):
            continue
        parts.append(f"{frame.file}, line {frame.line}, in {frame.function}")
        for name, value in frame.values().items():
            parts.append(f"  {name} = {VALUES.repr(value)}".replace("\n", "\n    "))
    return "\n".join(parts)


def _newest() -> Run:
    """Return the newest run with variables, of this kernel if it has one; else the newest run."""
    found = [run for run in iter_runs() if saved_ranks(run)]
    own = [run for run in found if run.record.kernel.is_this_process]
    return next(iter([*own, *found]), None) or find_run()
