"""The documentation covers every option, and its links are valid."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import nbmgpu
from nbmgpu.options.commands import COMMANDS
from nbmgpu.options.flags import FLAGS

ROOT = Path(nbmgpu.__file__).parent.parent
PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")})
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)")


def test_every_option_and_command_is_documented() -> None:
    page = (ROOT / "docs" / "options.md").read_text()
    listed = "\n".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    for flag in FLAGS:
        assert re.search(rf"`{flag.name}\b", listed), flag.name
    for command in COMMANDS:
        assert f"`%mgpu {command}`" in listed, command


def anchors(page: Path) -> Iterator[str]:
    """Yield the anchors of a page's headings, as GitHub generates them."""
    for heading in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_are_valid(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text()):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        if anchor and target.suffix == ".md":
            assert anchor in set(anchors(target)), f"{path}#{anchor}"


def test_pages_that_messages_and_docstrings_name_exist() -> None:
    sources = [*ROOT.glob("nbmgpu/**/*.py"), *ROOT.glob("labextension/src/**/*.ts*")]
    named = {name for path in sources for name in re.findall(r"docs/[\w/-]+\.md", path.read_text())}
    assert named
    for name in named:
        assert (ROOT / name).exists(), name


def test_tests_that_pages_name_exist() -> None:
    found = [
        (path, name)
        for page in PAGES
        for path, name in re.findall(r"`(tests/\w[\w/]*\.py)(?:::(\w+))?`", page.read_text())
    ]
    assert len(found) > 10
    for path, name in found:
        assert (ROOT / path).exists(), path
        assert f"def {name}(" in (ROOT / path).read_text() or not name, name
