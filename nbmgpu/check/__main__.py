"""``python -m nbmgpu.check``: run all checks, print a table, and write a report as JSON."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from nbmgpu.devices.probe import probe
from nbmgpu.formatting import format_count

from .check import Check
from .groups import all_checks
from .interrupts import Interrupted, raise_on_signals
from .report import Report, summary_line
from .runner import run_all, run_here
from .setting import Setting
from .temporary_folder import use_temporary_folder

REPORT = Path("nbmgpu-check.json")


def main() -> int:
    """Run the checks that the command line chooses; return the number of failed ones."""
    parser = argparse.ArgumentParser(prog="python -m nbmgpu.check", description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="check CPU ranks, whatever GPUs exist")
    parser.add_argument("--quick", action="store_true", help="the most important cells, not all")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT",
        help="checks whose name contains this, such as 'numbers: fsdp' (may be repeated)",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="print the names of the checks")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        default=REPORT,
        help="the report (default: %(default)s)",
    )
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)  # of a worker process
    options = parser.parse_args()

    chosen = _choose(parser, options.only, options.quick)
    if options.results is not None:
        chosen = [check for check in chosen if check.label in options.only]
    if options.list:
        print("\n".join(check.label for check in chosen))
        return 0
    machine = probe()
    setting = Setting.of(machine, options.cpu)
    if options.results is not None:
        run_here(chosen, setting, options.results)
        return 0
    report = Report.of(setting, machine)
    try:
        report.write(options.json)  # it shall not fail after the first check
    except OSError as error:
        parser.error(
            f"the report cannot be written to {options.json}: {error.strerror}. Choose a file in a "
            f"folder that exists, such as --json {Path.home() / REPORT}"
        )
    print(f"{format_count(len(chosen), 'check')}. {setting.proves}\n", flush=True)
    status = _run(chosen, report, options.json, cpu=options.cpu)
    with contextlib.suppress(OSError):  # the terminal may be gone
        print(f"\n{report.table()}\n\nThe report is in {options.json.resolve()}", flush=True)
    return status or min(report.count("failed"), 100)


def _choose(parser: argparse.ArgumentParser, only: list[str], quick: bool) -> list[Check]:
    """Return the checks of a command line; end the program if a text of ``--only`` is in none."""
    offered = [check for check in all_checks() if check.quick or not quick]
    for text in only:
        if not any(text in check.label for check in offered):
            groups = ", ".join(dict.fromkeys(check.group for check in offered))
            parser.error(
                f"no check's name contains {text!r}{' with --quick' if quick else ''}. Groups: "
                f"{groups}; all names: python -m nbmgpu.check --list"
            )
    return [c for c in offered if not only or any(text in c.label for text in only)]


def _run(chosen: list[Check], report: Report, path: Path, cpu: bool) -> int:
    """Run checks and report each; return 0, or the exit code after a signal."""
    try:
        with (
            raise_on_signals(),
            use_temporary_folder(),
            contextlib.closing(run_all(chosen, cpu=cpu)) as results,
        ):
            for result in results:
                report.results.append(result)
                report.write(path)  # an interrupted report is one, too
                print(summary_line(result), flush=True)
    except Interrupted as signal:
        report.write(path)  # it may have come while the report was written
        return signal.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
