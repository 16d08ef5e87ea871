"""Draw what lies on which rank under each strategy: docs/images/strategies/*.svg.

A picture has a box per rank.  In it, a grid for parameters, gradients and optimizer states has a
row per layer and a column per part of a layer; the grid of activations has a column per sample.
Run it after a change; ``tests/docs/test_pictures.py`` compares the files with what it draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from strategy_layouts import PICTURES, SIZE, Cells, Picture, Rank

FOLDER = Path(__file__).parents[1] / "docs" / "images" / "strategies"

CELL, STEP = 11, 13
COLUMN, BOX_WIDTH, BOX_HEIGHT, GAP = 66, 272, 112, 12

STYLE = """
.card { fill: #f6f7f9 } .box { fill: #fff; stroke: #c3c9d4 } text { fill: #24292f }
.none { fill: none; stroke: #c3c9d4 } .parameters { fill: #0072b2 } .gradients { fill: #d98a00 }
.states { fill: #009e73 } .activations, .samples { fill: #b4578b } .brief { opacity: .35 }
.host { stroke: #24292f; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
.card { fill: #1c2029 } .box { fill: #262b36; stroke: #4a5263 } text { fill: #dfe3ea }
.none { stroke: #4a5263 } .parameters { fill: #3f9fdd } .gradients { fill: #e6a532 }
.states { fill: #2bb98f } .activations, .samples { fill: #d084ae } .host { stroke: #dfe3ea }
}
"""
"""Colours that colour-blind readers can tell apart, on a background of their own."""


def _squares(
    x: float, y: float, kind: str, held: Cells, brief: Cells, rows: int, extra: str = "",
    share: tuple[int, int] = (0, 1),
) -> Iterator[str]:  # fmt: skip
    """Draw a grid: what is held, what is there for a moment, and the rest as outlines."""
    number, of = share
    height = CELL / of
    paths: dict[str, str] = {}
    for row in range(rows):
        for column in range(SIZE):
            left, top = x + column * STEP, y + row * STEP
            paths["none"] = paths.get("none", "") + f"M{left:g} {top:g}h{CELL}v{CELL}h-{CELL}z"
            if (row, column) in held | brief:
                name = f"{kind}{extra if (row, column) in held else ' brief'}"
                inner = f"M{left:g} {top + number * height:g}h{CELL}v{height:g}h-{CELL}z"
                paths[name] = paths.get(name, "") + inner
    for name, path in paths.items():
        yield f'<path class="{name}" d="{path}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{escape(text)}</text>"
    )


def _box(left: float, top: float, title: str, rank: Rank) -> Iterator[str]:
    """Draw one rank."""
    yield (
        f'<rect class="box" x="{left:g}" y="{top:g}" width="{BOX_WIDTH}" '
        f'height="{BOX_HEIGHT}" rx="4"/>'
    )
    yield _text(left + 9, top + 19, title, weight="bold")
    if not rank.samples:
        yield _text(
            left + BOX_WIDTH / 2, top + BOX_HEIGHT / 2 + 8, "what the cell creates", "middle"
        )
        return
    x = left + BOX_WIDTH - 9 - SIZE * STEP
    yield _text(x - 6, top + 19, "samples", "end")
    samples = frozenset((0, sample) for sample in rank.samples)
    yield from _squares(x, top + 9, "samples", samples, frozenset(), rows=1)
    grids = (
        ("parameters", rank.parameters, rank.gathered, ""),
        ("gradients", rank.gradients, rank.reduced, ""),
        ("states", rank.states, frozenset(), " host" if rank.host else ""),
        ("activations", rank.activations, frozenset(), ""),
    )
    for index, (kind, held, brief, extra) in enumerate(grids):
        x = left + 11 + index * COLUMN
        share = rank.share if kind == "activations" else (0, 1)
        yield from _squares(x, top + 34, kind, held, brief, SIZE, extra, share)
        yield _text(x + SIZE * STEP / 2 - 1, top + BOX_HEIGHT - 9, kind, "middle")


def svg(picture: Picture) -> str:
    """Return the picture as SVG."""
    rows = len(picture.ranks) // 2
    width, height = 2 * BOX_WIDTH + 3 * GAP, rows * (BOX_HEIGHT + GAP) + GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" font-family="sans-serif" font-size="11">',
        f"<title>{escape(picture.name)}: what lies on which rank</title>",
        f"<desc>{escape(picture.alt)}</desc>",
        f"<style>{STYLE}</style>",
        f'<rect class="card" width="{width}" height="{height}" rx="6"/>',
    ]
    for number, rank in enumerate(picture.ranks):
        left = GAP + (number % 2) * (BOX_WIDTH + GAP)
        top = GAP + (number // 2) * (BOX_HEIGHT + GAP)
        place = f" ({rank.place})" if rank.place else ""
        lines += _box(left, top, f"{picture.who} {number}{place}", rank)
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for each in PICTURES:
        (FOLDER / each.file).write_text(svg(each))
