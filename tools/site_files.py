"""A hook of MkDocs that puts the repository's other pages into the site, beside those of docs/.

In the repository, docs/options.md links to ../CONTRIBUTING.md, which links to docs/numbers.md.  In
the site, both lie in one folder: this hook adds the files outside docs/ that pages link to, and
rewrites such links.  On GitHub, pages stay as they are.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

OUTSIDE = (
    "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "SECURITY.md", "benchmarks/RESULTS.md",
    "benchmarks/checks/*.json", "notebooks/README.md", "notebooks/*.ipynb",
)  # fmt: skip
"""Files outside docs/ that are part of the site."""

LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)")

CELL = re.compile(r"<td.*?</td>", re.DOTALL)
TEXT = re.compile(r"(?<=>)[^<]+")
BREAK = re.compile(r"(?<=\w\w)(_|/|::)(?=\w\w)")
"""Where a long name in a table may continue on the next line."""

FLAG = re.compile(r"(?<![\w-])--\w+")
"""The part of a flag that does not break: a browser would break it behind a hyphen."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside docs/."""
    for pattern in OUTSIDE:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite links between docs/ and the other files."""
    name = page.file.src_uri
    if name.startswith("coming-from/"):
        page.meta["hide"] = ["toc"]  # its cells stand side by side, and need the room
    inside = (ROOT / "docs" / name).is_file()
    folder = posixpath.dirname(f"docs/{name}" if inside else name)

    def rewritten(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        target = target.removeprefix("docs/")  # where docs/ itself lies in the site
        return posixpath.relpath(target, posixpath.dirname(name) or ".")

    return LINK.sub(rewritten, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Allow long names in tables to break between their words, or tables would be too wide."""

    def breakable(text: re.Match[str]) -> str:
        return FLAG.sub(r'<span class="flag">\g<0></span>', BREAK.sub(r"\1<wbr>", text[0]))

    return CELL.sub(lambda cell: TEXT.sub(breakable, cell[0]), html)
