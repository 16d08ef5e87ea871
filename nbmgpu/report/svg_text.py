"""A text in an SVG picture."""

from __future__ import annotations

from html import escape


def svg_text(x: float, y: float, words: str, anchor: str = "start", size: int = 12) -> str:
    """Return ``words`` at a place, in pixels, in the text colour of the page.

    Args:
        x: of the start, the middle or the end of the text, as ``anchor`` says.
        y: of its baseline.
        words: the text, which is escaped.
        anchor: ``start``, ``middle`` or ``end``.
        size: of the font, in pixels.
    """
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-size='{size}' "
        f"fill='currentColor'>{escape(words)}</text>"
    )
