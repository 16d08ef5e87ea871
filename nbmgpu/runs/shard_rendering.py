"""A ``ShardTable`` as text and as static HTML."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from nbmgpu.formatting import format_bytes

if TYPE_CHECKING:
    from .shard_table import LayerRow, ShardTable

BLOCKS = 4
"""Characters of a bar in the text."""

COLOUR = "rgba(59, 130, 246, 0.35)"


def as_text(table: ShardTable) -> str:
    """Return the table as aligned lines, with a bar for each share."""
    if not table.rows:
        return no_rows(table)
    heads = [("layer", "parameters", *(f"rank {rank}" for rank in range(len(table.ranks))))]
    heads += [("", "", *table.ranks)] if any(table.ranks) else []
    lines = [(row.name, f"{row.elements:,}", *map(_with_bar, _shares(row))) for row in table.rows]
    total = table.total
    lines += [(total.name, f"{total.elements:,}", *map(format_bytes, total.nbytes))]
    widths = [max(map(len, column)) for column in zip(*heads, *lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in [*heads, *lines]
    )


def as_html(table: ShardTable) -> str:
    """Return the table as HTML that needs no style sheet."""
    if not table.rows:
        return f"<p>{escape(no_rows(table))}</p>"
    ranks = [f"rank {i}" + (f"<br>{escape(at)}" if at else "") for i, at in enumerate(table.ranks)]
    head = "".join(f'<th scope="col">{html}</th>' for html in ("layer", "parameters", *ranks))
    rows = "".join(
        _html_row(row, "".join(map(_html_cell, _shares(row), row.nbytes))) for row in table.rows
    )
    totals = "".join(f"<td>{format_bytes(size)}</td>" for size in table.total.nbytes)
    return (
        f"<table><thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}{_html_row(table.total, totals)}</tbody></table>"
    )


def no_rows(table: ShardTable) -> str:
    """Return why there is nothing to show."""
    return (
        f"No shards of parameters were reported: {table.strategy} stores all parameters on each "
        "rank, or has prepared no model yet."
    )


def in_short(table: ShardTable) -> str:
    """Return each rank's share in a line: ``each rank stores 25 % of ...``."""
    total = table.total
    shares = list(dict.fromkeys(map(percent, sorted(_shares(total)))))
    sizes = list(dict.fromkeys(map(format_bytes, sorted(total.nbytes))))
    share = " to ".join(dict.fromkeys([shares[0], shares[-1]]))
    size = " to ".join(dict.fromkeys([sizes[0], sizes[-1]]))
    return f"each rank stores {share} of {total.elements:,} parameters: {size}"


def percent(share: float) -> str:
    """Format a share: ``0 %`` and ``100 %`` are exact."""
    if 0 < share < 0.005:
        return "< 1 %"
    if 0.995 <= share < 1:
        return "> 99 %"
    return f"{100 * share:.0f} %"


def _shares(row: LayerRow) -> list[float]:
    return [stored / row.elements if row.elements else 0.0 for stored in row.stored]


def _with_bar(share: float) -> str:
    filled = round(BLOCKS * share)
    return f"{'█' * filled}{'·' * (BLOCKS - filled)} {percent(share):>6}"


def _html_row(row: LayerRow, cells: str) -> str:
    head = f'<th scope="row" style="text-align: left">{escape(row.name)}</th>'
    return f"<tr>{head}<td>{row.elements:,}</td>{cells}</tr>"


def _html_cell(share: float, nbytes: int) -> str:
    edge = f"{100 * share:.4g}%"
    fill = f"linear-gradient(90deg, {COLOUR} {edge}, transparent {edge})"
    return f'<td title="{format_bytes(nbytes)}" style="background: {fill}">{percent(share)}</td>'
