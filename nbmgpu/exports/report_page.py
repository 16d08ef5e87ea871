"""Writes a run as one page of HTML, which needs no network, no script and no other file."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from nbmgpu._version import __version__
from nbmgpu.environment.packages import full_version
from nbmgpu.errors import OptionError, format_message
from nbmgpu.formatting import format_bytes
from nbmgpu.options.parsing import format_value
from nbmgpu.options.run_options import DEFAULTS
from nbmgpu.report import text_format
from nbmgpu.report.curve_chart import NamedLine, chart_svg, line_style
from nbmgpu.report.curves import curve_names, downsample
from nbmgpu.report.summary import summary_html
from nbmgpu.runs.run import Run

from .replaced_files import GENERATOR, check_replaceable

LOG_BYTES = 200_000
"""Bytes of the log of a rank that a page has: half from its beginning, half from its end."""

POINTS = 600
"""Maximum points of a curve."""

LIBRARIES = ("torch", "numpy", "transformers", "lightning", "accelerate", "deepspeed", "ipython")

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em; }
pre { font: 13px/1.45 ui-monospace, monospace; overflow: auto; padding: 0.8em; border-radius: 6px;
  background: rgba(128, 128, 128, 0.12); }
table { border-collapse: collapse; }
td, th { text-align: left; vertical-align: top; padding: 2px 16px 2px 0; }
th { font-weight: 600; white-space: nowrap; }
h2 { margin-top: 1.6em; font-size: 1.2em; }
summary { cursor: pointer; }
"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""A page may show its own styles and nothing else, even if text in it were not escaped."""


def write_report(run: Run, path: Path) -> Path:
    """Write the report of ``run`` to ``path``; return it.

    Raises:
        OptionError: ``path`` is no HTML file, or it exists and is no report.
        OSError: it cannot be written.
    """
    if path.suffix not in (".html", ".htm"):
        what = f"A report is a file of HTML, and {path.name} is none"
        raise OptionError(format_message(what, instead=str(path.with_suffix(".html"))))
    check_replaceable(path)
    path.write_text(report_html(run), encoding="utf-8")
    return path


def report_html(run: Run) -> str:
    """Return the report of ``run``: cell, options, environment, charts, summary, logs."""
    run.refresh()
    title = run.labels.name or f"Run {run.id}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        _section("Note", _pre(run.labels.note) if run.labels.note else ""),
        summary_html(run, curves=False),
        _section("Curves", _charts(run)),
        _section("Cell", _pre(run.cell)),
        _section("Options", _table(_options(run))),
        _section("Environment", _table(_environment(run))),
        _section("Logs", "".join(_log(run, rank) for rank in range(run.record.world_size))),
    ]
    head = (
        f'<meta charset="utf-8">{GENERATOR}'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
    )
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _charts(run: Run) -> str:
    """Return a chart for each metric, the loss first."""
    charts = []
    for name in curve_names(run.view):
        steps, values = downsample(*run.view.curves[name].arrays(), POINTS)
        title = text_format.plain(name)
        charts.append(chart_svg(title, [NamedLine(title, line_style(0), steps, values)]))
    return "".join(charts)


def _section(title: str, html: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{html}</section>" if html else ""


def _pre(text: str) -> str:
    return f"<pre>{escape(text_format.plain(text))}</pre>" if text.strip() else ""


def _table(rows: Iterable[tuple[str, str]]) -> str:
    cells = (
        f"<tr><th>{escape(name)}</th><td>{escape(text_format.plain(value))}</td></tr>"
        for name, value in rows
    )
    return f"<table>{''.join(cells)}</table>"


def _options(run: Run) -> list[tuple[str, str]]:
    """Return the strategy, and the options that differ from the defaults."""
    values: Mapping[str, Any] = run.record.options.values
    rows = [("strategy", run.record.options.strategy)]
    for name, value in values.items():
        given = tuple(value) if isinstance(value, list) else value  # JSON has no tuples
        if name != "strategy" and name in DEFAULTS and given != DEFAULTS[name]:
            rows.append((name.replace("_", "-"), format_value(given)))
    return rows


def _environment(run: Run) -> list[tuple[str, str]]:
    record = run.record
    hosts = dict.fromkeys(rank.host for rank in run.view.ranks if rank.host)
    started = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc)
    rows = [
        ("notebook", record.kernel.notebook),
        ("working directory", record.kernel.cwd),
        ("started", f"{started:%Y-%m-%d %H:%M:%S} UTC"),
        ("devices", text_format.device_names(record.devices)),
        ("machines", ", ".join(hosts)),
        ("threads per rank", str(record.threads)),
        ("nbmgpu, Python", f"{__version__}, {platform.python_version()} (where this was exported)"),
    ]
    rows += [(name, version) for name in LIBRARIES if (version := full_version(name))]
    return [row for row in rows if row[1]]


def _log(run: Run, rank: int) -> str:
    """Return the log of one rank, to be unfolded; that of rank 0 is."""
    text = _shortened(run.log_path(rank))
    if not text.strip():
        return ""
    opened = " open" if rank == 0 else ""
    return f"<details{opened}><summary>Rank {rank}</summary>{_pre(text)}</details>"


def _shortened(path: Path) -> str:
    """Return a log, without its middle if it is long."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if size <= LOG_BYTES:
                return file.read().decode(errors="replace")
            first = file.read(LOG_BYTES // 2)
            file.seek(size - LOG_BYTES // 2)
            last = file.read()
    except FileNotFoundError:
        return ""
    left_out = f"\n... {format_bytes(size - len(first) - len(last))} left out ...\n"
    return first.decode(errors="replace") + left_out + last.decode(errors="replace")
