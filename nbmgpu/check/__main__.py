"""``python -m nbmgpu.check``: run all checks, print a table, and write a report as JSON."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from nbmgpu.devices.probe import probe

from .groups import all_checks
from .report import Report, summary_line
from .runner import run_all, run_here
from .setting import Setting


def main() -> int:
    """Run the checks that the command line chooses; return the number of failed ones."""
    parser = argparse.ArgumentParser(prog="python -m nbmgpu.check", description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="check CPU ranks, whatever GPUs exist")
    parser.add_argument("--quick", action="store_true", help="four cells per strategy, not all")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT",
        help="checks whose name contains this, such as 'numbers: fsdp' (may be repeated)",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="print the names of the checks")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report to FILE")
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)  # of a worker process
    options = parser.parse_args()

    chosen = [
        check
        for check in all_checks()
        if (check.quick or not options.quick)
        and (not options.only or any(text in check.label for text in options.only))
    ]
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
    print(f"{len(chosen)} checks. {setting.proves}\n", flush=True)
    report = Report.of(setting, machine)
    for result in run_all(chosen, cpu=options.cpu):
        report.results.append(result)
        print(summary_line(result), flush=True)
        if options.json is not None:  # after each: an interrupted report is one, too
            options.json.write_text(report.to_json() + "\n")
    print("\n" + report.table())
    return min(report.count("failed"), 100)


if __name__ == "__main__":
    sys.exit(main())
