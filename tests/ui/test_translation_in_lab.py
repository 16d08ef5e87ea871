"""JupyterLab in German: the texts of the extension are those of nbmgpu/locale."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import command, open_notebook
from jupyter_server_process import REPOSITORY
from lab_server import Lab, serving
from playwright.sync_api import Page, expect

sys.path.append(str(REPOSITORY / "tools"))

import translations

RUN = "%load_ext nbmgpu\n", "%%mgpu --gpus 2 --cpu --strategy none\n6 * 7"


@pytest.mark.parametrize("language", translations.languages())
def test_a_language_has_all_texts_and_no_others(language: str) -> None:
    assert not list(translations.problems(language))


@pytest.fixture(scope="module")
def german(tmp_path_factory: pytest.TempPathFactory, built: None) -> Iterator[Lab]:
    """JupyterLab whose language is set to German, as with Settings, Language."""
    root = Path(tmp_path_factory.mktemp("german"))
    settings = root / "settings" / "@jupyterlab" / "translation-extension"
    settings.mkdir(parents=True)
    (settings / "plugin.jupyterlab-settings").write_text(json.dumps({"locale": "de_DE"}))
    with serving("lab", root) as lab:
        yield lab


@pytest.mark.browser
def test_sidebar_and_run_are_in_german(german: Lab, page: Page) -> None:
    open_notebook(page, german.write("run.ipynb", *RUN))
    command(page, "nbmgpu:show-runs")
    sidebar = page.get_by_role("region", name="Geräte und Läufe")
    expect(sidebar.get_by_text("Noch keine Läufe.")).to_be_visible()
    command(page, "notebook:run-all-cells")
    card = sidebar.locator(".nbmgpu-RunCard")
    expect(card).to_have_count(1, timeout=60_000)
    expect(card.get_by_role("button", name="Löschen: Lauf")).to_be_visible()
    command(page, "nbmgpu:open-run")
    run = page.locator(".nbmgpu-RunTab .nbmgpu-view[aria-label='Lauf auf mehreren Ranks']")
    expect(run).to_be_visible()
