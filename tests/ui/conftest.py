"""Fixtures: a real JupyterLab and a real Chromium, one of each per module."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from browsing import CHROMIUM, FLAGS
from lab_server import EXTENSION, Lab, serving
from playwright.sync_api import Browser, Page, expect, sync_playwright

expect.set_options(timeout=30_000)


def unavailable(reason: str) -> NoReturn:
    """Skip with a reason; fail in CI."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def built() -> None:
    """Skip unless the front end is built."""
    if not (EXTENSION / "package.json").exists():
        unavailable("the front end is not built; cd labextension && jlpm install && jlpm build")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, built: None) -> Iterator[Lab]:
    """JupyterLab, with nbmgpu's extension."""
    with serving("lab", tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture(scope="module")
def notebook7(tmp_path_factory: pytest.TempPathFactory, built: None) -> Iterator[Lab]:
    """Notebook 7, with nbmgpu's extension."""
    pytest.importorskip("notebook", reason="Notebook 7 is not installed")
    with serving("notebook", tmp_path_factory.mktemp("notebook7")) as notebook7:
        yield notebook7


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium, without background network traffic."""
    if not Path(CHROMIUM).exists():
        unavailable("there is no Chromium; sudo apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh page. Requests to other hosts than the server fail the test."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    asked: list[str] = []

    def refuse(route: Any) -> None:
        asked.append(route.request.url)
        route.abort()

    context.route(
        lambda url: not url.startswith(("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:")),
        refuse,
    )
    page = context.new_page()
    page.set_default_timeout(30_000)
    yield page
    context.close()
    assert asked == []


@pytest.fixture
def shoot(page: Page) -> Callable[..., None]:
    """Save a screenshot of the page, or of another one, in ``$NBMGPU_SHOTS``, if set."""

    def keep(name: str, page: Page = page) -> None:
        if folder := os.environ.get("NBMGPU_SHOTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=Path(folder) / f"{name}.png")

    return keep
