"""Runs checks in a process of their own, and starts another one where it does not survive."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TextIO

from nbmgpu.report.text_format import exit_word
from nbmgpu.system.parent_death import die_with_parent

from .check import Check, CheckResult
from .session import end_session
from .setting import Setting

SECONDS_PER_CHECK = 900
"""After this time without a result, a check counts as hanging."""


def run_here(checks: Sequence[Check], setting: Setting, results: Path) -> None:
    """Run checks one after the other in this process; append a line per result to ``results``.

    The process ends with its parent.
    """
    die_with_parent(os.getppid(), signal.SIGTERM)
    with results.open("a") as file:
        for check in checks:
            file.write(check.run(setting).to_json() + "\n")
            file.flush()


def run_all(checks: Sequence[Check], cpu: bool) -> Generator[CheckResult, None, None]:
    """Yield the result of each check.

    The checks of a group share a process.  If it ends or hangs, the check that it was running has
    failed, and another process goes on with the next one.
    """
    waiting = list(checks)
    while waiting:
        group = [check for check in waiting if check.group == waiting[0].group]
        done = 0
        with contextlib.closing(_run_group(group, cpu)) as results:
            for result in results:
                yield result
                done += 1
        waiting = [check for check in waiting if check not in group[:done]]


def _run_group(group: Sequence[Check], cpu: bool) -> Generator[CheckResult, None, None]:
    """Yield results until all checks of the group have one, or their process is lost."""
    with tempfile.TemporaryDirectory() as folder:
        results, log = Path(folder) / "results.jsonl", Path(folder) / "log"
        results.touch()
        only = [part for check in group for part in ("--only", check.label)]
        command = [sys.executable, "-m", "nbmgpu.check", "--results", str(results), *only]
        with log.open("w") as output, results.open() as lines:
            process = subprocess.Popen(
                [*command, *(["--cpu"] if cpu else [])],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
            try:
                for check in group:
                    begun = time.monotonic()
                    line = _next_line(lines, process, begun + SECONDS_PER_CHECK)
                    if line is None:
                        seconds = time.monotonic() - begun
                        yield _lost(check, process, seconds, log.read_text(errors="replace"))
                        return
                    yield CheckResult.from_json(line)
            finally:
                end_session(process)


def _next_line(lines: TextIO, process: subprocess.Popen[bytes], until: float) -> str | None:
    """Return the next whole line; None if none comes in time, or ``process`` has ended."""
    part = ""
    while time.monotonic() < until:
        ended = process.poll() is not None  # before reading: it may write and end in between
        part += lines.readline()
        if part.endswith("\n"):
            return part
        if ended:
            return None
        time.sleep(0.05)
    return None


def _lost(check: Check, process: subprocess.Popen[bytes], seconds: float, log: str) -> CheckResult:
    code = process.poll()
    if code is None:
        how = f"hangs: no result after {seconds:.0f} s"
    elif code < 0:
        how = f"its process was ended by {exit_word(code)}"
    else:
        how = f"ended its process with exit code {code}"
    tail = " ".join(log.split()[-60:]) or "it printed nothing"
    return CheckResult(check.group, check.name, "failed", f"{how}: {tail}", round(seconds, 2))
