"""The command ``nbmgpu``: runs from a terminal, as on a login node."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence

from nbmgpu._version import __version__
from nbmgpu.errors import NbmgpuError
from nbmgpu.kernel.executor import select_run
from nbmgpu.kernel.later_write_back import LaterWriteBack
from nbmgpu.options.clean_options import CLEAN, CleanOptions
from nbmgpu.options.parsing import format_flags
from nbmgpu.report.kept_summary import summary_of
from nbmgpu.runs.run import Run
from nbmgpu.runs.run_list import find_run

from . import commands
from .clean_command import clean_text
from .engine_command import engine_text
from .export_command import OWN_OPTIONS, export_text
from .info import info_text
from .run_follower import LogFollower, RunFollower, announced_following_run, follow_log, log_of

INTERRUPTED = 130
"""Exit code after Ctrl-C, as of a shell."""

GOES_ON = "Run {run} goes on. nbmgpu attach {run} follows it again; nbmgpu stop {run} ends it."
RESULTS = "Its results are in its folder: %mgpu attach {run} in a notebook writes them into it."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that ``arguments``, by default those of the process, name.

    Returns:
        0, or 1 after an error, which is printed, or where an attached run has not finished.
    """
    given = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int | None] = given.command
    try:
        return run(given) or 0
    except NbmgpuError as error:
        print(in_terminal(str(error)), file=sys.stderr)
        return 1
    except (KeyboardInterrupt, BrokenPipeError):  # of `logs -f`
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("nbmgpu", description="Runs of %%mgpu cells, from a terminal.")
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, what: str, command: Callable[[argparse.Namespace], int | None], run: str = ""
    ) -> argparse.ArgumentParser:
        added = subparsers.add_parser(name, help=what, description=what)
        added.set_defaults(command=command)
        if run:
            added.add_argument("run", nargs="?", default="", help=run)
        return added

    newest = "id of the run, or its beginning (default: the newest)"
    active = "id of the run, or its beginning (default: the newest that is active)"
    add("runs", "list the runs, newest first", _runs)
    add("show", "show one run: state, curves, notices and folder", _show, newest)
    logs = add("logs", "print what the ranks have written", _logs, newest)
    logs.add_argument("-f", "--follow", action="store_true", help="until the run is over")
    logs.add_argument("--rank", type=int, default=0, help="of this rank (default: 0)")
    attach = add(
        "attach", "follow a run until it is over: exit code 0 if it finishes", _attach, active
    )
    attach.add_argument("--rank", type=int, default=0, help="print this rank's log (default: 0)")
    add("stop", "stop a run; a second time, kill it without its results", _stop, active)
    engine = add("engine", "list engine profiles; add NAME --engine ..., remove NAME", _engine)
    engine.add_argument("words", nargs=argparse.REMAINDER, metavar="add | remove NAME ...")
    clean = add("clean", "show what runs take on the disk; remove old or large ones", _clean)
    for flag in CLEAN.flags:
        if flag.metavar:
            clean.add_argument(flag.name, help=flag.help, metavar=flag.metavar, default="")
        else:
            clean.add_argument(flag.name, help=flag.help, action="store_true")

    export = add(
        "export", "write a run as a script: [RUN] train.py, or --report [RUN] report.html", _export
    )
    for option in OWN_OPTIONS:  # REMAINDER leaves out options that come first
        export.add_argument(option, action="append_const", const=option, dest="own", default=[])
    export.add_argument("words", nargs=argparse.REMAINDER, metavar="[RUN] FILE ...")
    add("info", "show devices, versions, engines and what is missing", _info)
    return parser


def _runs(_: argparse.Namespace) -> None:
    frame = commands.runs("")
    print(frame.to_string() if len(frame) else "There is no run yet.")


def _show(given: argparse.Namespace) -> None:
    print(commands.show(given.run))


def _logs(given: argparse.Namespace) -> None:
    run = find_run(given.run)
    if given.follow:
        follow_log(run, given.rank)
    else:
        LogFollower(log_of(run, given.rank)).print_new()


def _attach(given: argparse.Namespace) -> int:
    following: Run | None = select_run(given.run)
    try:
        while following is not None:
            run = following
            RunFollower(run, given.rank).follow()
            following = announced_following_run(run)
    except KeyboardInterrupt:
        print(GOES_ON.format(run=run.id), file=sys.stderr)
        return INTERRUPTED
    print(in_terminal(summary_of(run).text))
    if LaterWriteBack(run, {}).is_due:
        print(RESULTS.format(run=run.id))
    return 0 if run.state == "finished" else 1


def _stop(given: argparse.Namespace) -> None:
    print(in_terminal(commands.stop_text(given.run)))


def _engine(given: argparse.Namespace) -> None:
    print(in_terminal(engine_text(shlex.join(given.words))))


def _clean(given: argparse.Namespace) -> None:
    values = {flag.field: getattr(given, flag.field) for flag in CLEAN.flags}
    words = format_flags(values, CLEAN.flags, vars(CleanOptions()))
    print(in_terminal(clean_text(" ".join(words))))


def _export(given: argparse.Namespace) -> None:
    print(in_terminal(export_text(shlex.join([*given.own, *given.words]))))


def _info(_: argparse.Namespace) -> None:
    print(in_terminal(info_text()))


def in_terminal(text: str) -> str:
    """Return a text of the magic with the commands as a terminal has them."""
    return text.replace("%mgpu ", "nbmgpu ").replace("%nbmgpu", "%%mgpu")


if __name__ == "__main__":
    sys.exit(main())
