"""What reads data that nbmgpu has not written: cells, events, logs, option lines, routes.

Each target takes one input, and raises an exception only if it finds a defect.  The tests give
them inputs of hypothesis; ``tools/fuzz.py`` gives them millions that ``Mutator`` makes.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import random
import re
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from staged import StagedRun

from nbmgpu.advisor import picker_state
from nbmgpu.cell import read_cell
from nbmgpu.comparison import request as comparison
from nbmgpu.errors import NbmgpuError
from nbmgpu.options.run_options import RunOptions
from nbmgpu.report.log_file import LogFile
from nbmgpu.report.log_pages import LogReader, LogRequest
from nbmgpu.report.snapshot import Snapshot
from nbmgpu.runs.event_file import EventTail
from nbmgpu.runs.event_lines import decode
from nbmgpu.runs.run import Run
from nbmgpu.runs.view import RunView
from nbmgpu.server.app import ROUTES
from nbmgpu.server.base_handler import to_json
from nbmgpu.server.run_folders import RUN_ID, NoSuchRunError, open_run, own_file, run_folder
from nbmgpu.server.run_list import RunListReader

STAR_IMPORT = re.compile(r"import\s*\(?\s*\*|__import__")
"""Cells with star imports are not read: that imports the module."""

RUN = "20260101-120000-000aa"
SLOW = ((comparison, "probe"), (picker_state, "probe"), (importlib.metadata, "entry_points"))


def cache_slow_functions(patch: pytest.MonkeyPatch) -> None:
    """Call what reads devices and installed packages once: neither changes meanwhile."""
    for module, name in SLOW:
        patch.setattr(module, name, functools.cache(getattr(module, name)))


TRANSFORM = TransformerManager().transform_cell


class Targets:
    """The targets, with a folder of runs; ``NBMGPU_RUNS`` must be that folder."""

    def __init__(self) -> None:
        """Create a run that the targets overwrite."""
        self.root = Path(os.environ["NBMGPU_RUNS"])
        shutil.rmtree(self.root / RUN, ignore_errors=True)
        staged = StagedRun(2, id=RUN)
        staged.start()
        staged.points("loss", [1, 2], [0.5, 0.25])
        staged.progress(1, 2)
        staged.heartbeat(0, 1)
        staged.log(0, "first line\nsecond line\n", stderr=True)
        staged.notice("text")
        staged.fail(0)
        staged.exit(0, 1)
        staged.end("failed", "detail")
        staged.close()
        self.run = staged.run
        self.events = self.run.events_path("rank-0").read_bytes()
        self.launcher = self.run.events_path("launcher").read_bytes()
        self.record = (self.run.folder / "run.json").read_bytes()
        self.view = RunView(2)
        self.lines = RunListReader()
        self.lines.newest()
        digest = self.run.folder / "line.json"
        self.digest = digest.read_bytes() if digest.exists() else b"{}"

    def cell(self, source: str) -> None:
        """Read which names a cell uses."""
        if STAR_IMPORT.search(source):
            return
        try:
            cell = read_cell(source, {"x": 1, "np": np}, TRANSFORM)
        except (SyntaxError, NbmgpuError):
            return
        assert {*cell.reads} <= {"x", "np"}

    def line(self, line: bytes) -> None:
        """Read one event, and apply it."""
        if (event := decode(line)) is not None:
            self.view.add(event)
            if len(self.view.curves) + len(self.view.notices) + len(self.view.tracks) > 50:
                self.view = RunView(2)

    def events_alone(self, data: bytes) -> None:
        """Read a file of events, in two parts."""
        path = self.run.events_path("fuzz")
        path.write_bytes(data[: len(data) // 2])
        tail = EventTail(path)
        events = tail.read()
        with path.open("ab") as file:
            file.write(data[len(data) // 2 :] + b"\n")
        events += tail.read()
        assert events == EventTail(path).read() or b"NaN" in data
        path.unlink()

    def state(self, data: bytes) -> None:
        """Compute the state of a run with these events, and what pages show of it."""
        self.run.events_path("rank-0").write_bytes(data)
        run = Run(self.run.folder)
        assert run.state is not None
        to_json(Snapshot(run).whole())
        assert len(run.metrics) >= 0

    def launcher_state(self, data: bytes) -> None:
        """The same, with these events of the launcher."""
        self.run.events_path("launcher").write_bytes(data)
        self.state(self.events)
        self.run.events_path("launcher").write_bytes(self.launcher)

    def log(self, data: bytes, first: int, count: int, search: str) -> None:
        """Show pages of a log, which grows meanwhile."""
        path = self.run.log_path(0)
        path.write_bytes(data[: len(data) // 2])
        reader = LogReader(self.run)
        for part in (data[len(data) // 2 :], b""):
            for rank in (-1, 0, 1, 7):
                page = reader.page(LogRequest(rank, first, count, search))
                assert len(page.lines) <= max(0, min(count, 2000))
                to_json(page)
            with path.open("ab") as file:
                file.write(part)
        file = LogFile(path)
        file.update()
        assert file.lines == len(data.removesuffix(b"\n").split(b"\n")) if data else not file.lines

    def options(self, line: str) -> None:
        """Parse the line of a cell; what an error suggests is valid."""
        for parse in (RunOptions.parse, parse_compare, parse_scale):
            try:
                parsed = parse(line)
            except NbmgpuError:
                continue
            if isinstance(parsed, RunOptions):
                assert RunOptions.parse(parsed.line()) == parsed

    def picker(self, line: str, controls: dict[str, object]) -> None:
        """Describe a picker, as the server does; a TypeError is answered with 400."""
        try:
            to_json(picker_state.describe(line.partition("\n")[0], {}, controls).plain())
        except (NbmgpuError, TypeError):
            pass

    def route(self, name: str) -> None:
        """Look up the part of an address that should be the id of a run."""
        try:
            folder = run_folder(name)
        except NoSuchRunError:
            pass
        else:
            assert RUN_ID.fullmatch(name)
            assert folder.parent == self.root
        for pattern, _ in ROUTES:
            if (found := re.fullmatch(pattern, f"/nbmgpu/api/runs/{name}")) and found.groups():
                assert "/" not in found[1]

    def record_of_run(self, data: bytes) -> None:
        """Open a run whose ``run.json`` is this, and list it."""
        (self.run.folder / "run.json").write_bytes(data)
        try:
            run = open_run(RUN)
            own_file(run.folder, run.folder / "run.json")
        except NoSuchRunError:
            pass
        self.lines.newest()
        (self.run.folder / "run.json").write_bytes(self.record)

    def list_entry(self, data: bytes) -> None:
        """List a run whose cached entry is this."""
        (self.run.folder / "line.json").write_bytes(data)
        to_json(RunListReader().newest())


def parse_compare(line: str) -> object:
    """Parse the line of ``%%mgpu compare``."""
    return comparison.parse("compare", line)


def parse_scale(line: str) -> object:
    """Parse the line of ``%%mgpu scale``."""
    return comparison.parse("scale", line)


def stdlib_sources(number: int = 400) -> list[str]:
    """Return statements of Python's standard library, of at most 2000 characters each."""
    found = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:number]:
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [part for part in re.split(r"\n(?=\S)", text) if 20 < len(part) < 2000]
    return found


TOKENS = [
    "%", "!", "?", "%%", "%%time\n", "!ls {x}\n", "%timeit x\n", "x?", "\n", "\t", "    ", "\\\n",
    "(", ")", "[", "]", "{", "}", "'", '"', '"""', "f'{x}'", "f'{", "lambda:", ":=", "await ", "*",
    "**", "...", "@", "->", "match x:\n case ", "async ", "yield ", "del ", "global x\n",
    "class A:", "def f():", "for x in ", "with x as y:", "try:\n", "except*", "import ", "\0",
    "\ud800", "é", "\U0001d7d0", "\u2028", "\r", "\x0c", "eval('", "exec(", "__class__",
    "0x", "1e999", "# type:", "nonlocal x\n",
]  # fmt: skip
"""What a mutation puts into a text."""

JSON_TOKENS = [
    b"{", b"}", b"[", b"]", b'"', b":", b",", b"null", b"true", b"-1", b"1e999", b"NaN", b"\n",
    b"\0", b"9" * 30, b"9" * 5000, b"[" * 3000, b'"\\ud800"', b"\xff", b"0.5", b"{}", b"[]",
    b'{"kind":"exited","time":1,"rank":', b'"rank":7', b'"steps":[1,"a"]', b'"kind":"metrics"',
    b"\r\n", b"\x1b[31m",
]  # fmt: skip


class Mutator:
    """Makes inputs from examples: parts are deleted, repeated, exchanged, replaced."""

    def __init__(self, seed: int, examples: dict[str, list[str] | list[bytes]]) -> None:
        """Use ``examples`` by kind."""
        self.random = random.Random(seed)
        self.examples = examples

    def text(self, kind: str) -> str:
        """Return a mutated text."""
        return self._mutated(kind, "", TOKENS)

    def data(self, kind: str) -> bytes:
        """Return mutated bytes."""
        return self._mutated(kind, b"", JSON_TOKENS)

    def _mutated(self, kind: str, empty: Any, tokens: list[Any]) -> Any:
        rng = self.random
        data: Any = rng.choice(self.examples[kind])
        for _ in range(rng.choice((0, 1, 1, 2, 3, 5, 9))):
            a, b = sorted((rng.randint(0, len(data)), rng.randint(0, len(data))))
            b = min(b, a + rng.choice((1, 3, 20, 2000)))
            match rng.randrange(6):
                case 0:
                    data = data[:a] + data[b:]
                case 1:
                    data = data[:a] + data[a:b] * 2 + data[b:]
                case 2:
                    other: Any = rng.choice(self.examples[kind])
                    at = rng.randint(0, len(other))
                    data = data[:a] + other[at : at + b - a] + data[b:]
                case 3:
                    data = data[:a]
                case 4:
                    char = rng.randrange(256)
                    one = chr(char) if isinstance(empty, str) else bytes([char])
                    data = data[:a] + one + data[a + 1 :]
                case 5:
                    data = data[:a] + rng.choice(tokens) + data[a:]
        return data


OPTION_WORDS = [
    "--strategy", "-s", "ddp", "fsdp", "pp", "--gpus", "-g", "2", "all", "0,1", "-1", "--cpu",
    "--batch", "per-rank", "--seed", "7", "--mesh", "dp=2,tp=2", "dp=", "=", "--pull", "a,b",
    "--timeout", "10m", "1e999", "--steps", "--exact", "always", "--precision", "bf16",
    "--checkpoint-every", "500steps", "epoch", "--keep", "--resume", "--max-restarts", "--on-hang",
    "stop", "--split-points", "layers.1", "--balance", "time", "'", '"', "\\", "#", "--", "-",
    "nan", "inf", "9" * 400, "--gpus=2", "-g2", "\0", "\U0001d7d0", "--help", "²", "٣",
    "--strategies", "--ranks", "1,2", "/tmp/x", "~", "\n", ",", ",,", "x=1=2", "--no-such",
    "--compile", "\ud800",
]  # fmt: skip


LOGS = [b"line\n" * 5, b"", b"a\rb\r\n\x1b[31mred\x1b[0m\n", b"x" * 9000 + b"\n", b"\xff\n"]
SEARCHES = ("", "l", "é", "\ud800")


def make_inputs(targets: Targets, seed: int) -> dict[str, Callable[[], None]]:
    """Return for each target a function that gives it one new input."""
    lines = [line + b"\n" for line in (targets.events + targets.launcher).splitlines()]
    make = Mutator(
        seed,
        {
            "cell": stdlib_sources(),
            "events": [targets.events, targets.launcher, *lines],
            "line": lines,
            "record": [targets.record],
            "digest": [targets.digest],
            "log": [
                b"line\n" * 5,
                b"",
                b"a\rb\r\n\x1b[31mred\x1b[0m\n",
                b"x" * 9000 + b"\n",
                b"\xff\n",
            ],
            "name": [RUN, "..", "%2e%2e/x", "", "20260101-120000-000aa/../x"],
        },
    )
    rng = make.random

    def line() -> str:
        return " ".join(rng.choices(OPTION_WORDS, k=rng.randint(0, 7)))

    def control() -> dict[str, object]:
        names = ["gpus", "strategy", "batch", "precision", "accumulate", "x", "exact", "mesh"]
        values = [1, 2, -1, "ddp", "", None, [], {}, True, 1e999, "2", 10**30]
        return {rng.choice(names): rng.choice(values) for _ in range(rng.randint(0, 3))}

    return {
        "cell": lambda: targets.cell(make.text("cell")),
        "line": lambda: targets.line(make.data("line")),
        "events": lambda: targets.events_alone(make.data("events")),
        "state": lambda: targets.state(make.data("events")),
        "launcher": lambda: targets.launcher_state(make.data("events")),
        "log": lambda: targets.log(
            make.data("log"),
            rng.randint(-3, 9),
            rng.choice((-1, 0, 5, 10**9)),
            rng.choice(("", "l", "é", "\ud800")),
        ),
        "options": lambda: targets.options(line()),
        "picker": lambda: targets.picker(line(), control()),
        "route": lambda: targets.route(make.text("name")),
        "record": lambda: targets.record_of_run(make.data("record")),
        "digest": lambda: targets.list_entry(make.data("digest")),
    }
