"""The documentation site is built without a warning, and needs nothing from other hosts."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browsing import CHROMIUM, FLAGS
from markdown_blocks import REPOSITORY
from playwright.sync_api import sync_playwright

import nbmgpu

ATTRIBUTES = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}
"""What a page loads by itself; links that a reader clicks are not among it."""


class Loaded(HTMLParser):
    """Collects the addresses of what a page loads, and its images without a description."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.undescribed: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if (address := values.get(ATTRIBUTES.get(tag, ""))) is not None:
            self.addresses.append(address)
            if tag == "img" and not values.get("alt"):
                self.undescribed.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built so that a broken link or anchor fails."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(
        command, check=False, cwd=REPOSITORY, capture_output=True, text=True, timeout=120
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 35
    for page in pages:
        loaded = Loaded()
        loaded.feed(page.read_text())
        assert loaded.addresses
        assert [each for each in loaded.addresses if re.match(r"\w+:|//", each)] == []
        assert loaded.undescribed == [], page.name


def test_styles_load_nothing_from_other_hosts(site: Path) -> None:
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text()), style


def test_the_reference_describes_every_public_name(site: Path) -> None:
    page = (site / "reference.html").read_text()
    for name in nbmgpu.__all__:
        if name.startswith(("last_", "__")):
            assert f"nbmgpu.{name}" in page
            continue
        section = page.partition(f'id="nbmgpu.{name}"')[2].partition('<h2 id="')[0]
        summary = (getattr(nbmgpu, name).__doc__ or "").strip().partition("\n")[0]
        text = re.sub(r"<[^>]+>", "", section)
        assert summary.replace("``", "")[:40] in html.unescape(text), name


def test_every_page_is_in_the_navigation(site: Path) -> None:
    home = (site / "index.html").read_text()
    for page in (REPOSITORY / "docs").rglob("*.md"):
        name = page.relative_to(REPOSITORY / "docs").as_posix()
        target = name.replace("README.md", "index.html").replace(".md", ".html")
        assert f'href="{target}"' in home, name


WIDE = """() => [...document.querySelectorAll(".md-content *")]
    .filter(node => node.clientWidth && node.scrollWidth > node.clientWidth + 1)
    .filter(node => getComputedStyle(node).overflowX !== "visible" && node.querySelector("table"))
    .map(node => `${node.scrollWidth} in ${node.clientWidth}: ${node.textContent.slice(0, 60)}`)"""
"""What scrolls sideways because of a table in it, or cuts the table off."""


@pytest.mark.browser
@pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="there is no Chromium")
def test_tables_are_not_wider_than_their_page(site: Path) -> None:
    pages = [page for page in sorted(site.rglob("*.html")) if "<table" in page.read_text()]
    found: dict[str, list[str]] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        tab = browser.new_page()
        for page in pages:
            tab.goto(page.as_uri())
            for width in (1280, 800):
                tab.set_viewport_size({"width": width, "height": 800})
                if wide := tab.evaluate(WIDE):
                    found[f"{page.relative_to(site)} at {width}"] = wide
        browser.close()
    assert len(pages) > 15
    assert found == {}
