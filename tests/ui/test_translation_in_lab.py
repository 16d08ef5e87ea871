"""JupyterLab in German: the texts of the extension are those of nbmgpu/locale."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browsing import command, open_notebook
from jupyter_server_process import REPOSITORY
from lab_server import Lab, serving
from playwright.sync_api import Locator, Page, expect

sys.path.append(str(REPOSITORY / "tools"))

import translations

RUN = "%load_ext nbmgpu\n", "%%mgpu --gpus 2 --cpu --strategy none\n6 * 7"

TRAINING = (
    "%load_ext nbmgpu\n",
    """\
import time, torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8)
""",
    """\
%%mgpu --gpus 2 --cpu --strategy ddp
for each in range(3):
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.2)
""",
)

ENGLISH = re.compile(
    r"finished|failed|running|\bepoch\b|step time|\bstep\b|\bsteps\b|collective|\bcores?\b"
    r"|compared|samples/s|\bmemory\b|\b[AP]M\b| on \d| left\b|global batch|\brank\b"
)
"""Words that the front end translates, however they come to it."""

ACCESSIBLE_NAMES = """node => [...node.querySelectorAll("[aria-label], [title]")].flatMap(
  each => [each.ariaLabel, each.dataset.run ? "" : each.title])"""


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


@pytest.mark.browser
def test_what_python_composes_is_in_german(
    german: Lab, page: Page, shoot: Callable[..., None]
) -> None:
    open_notebook(page, german.write("training.ipynb", *TRAINING))
    command(page, "nbmgpu:show-runs")
    command(page, "notebook:run-all-cells")
    panel = page.locator(".jp-Notebook .nbmgpu-view")
    expect(panel.locator(".nbmgpu-state")).to_have_text("läuft", timeout=60_000)
    expect(panel.locator(".nbmgpu-bar-label").first).to_have_text(re.compile("Epoche . von 3"))
    check_words(panel)
    sidebar = page.get_by_role("region", name="Geräte und Läufe")
    card = sidebar.locator(".nbmgpu-RunCard").first
    expect(card.locator(".nbmgpu-RunCard-state")).to_have_text("fertig", timeout=60_000)
    expect(card.locator(".nbmgpu-RunCard-headline")).to_have_text("ddp auf 2 Ranks (cpu)")
    expect(card.locator(".nbmgpu-RunCard-where")).to_have_text(
        re.compile(r"training\.ipynb · \d\d:\d\d:\d\d$")
    )
    command(page, "nbmgpu:open-run")
    tab = page.locator(".nbmgpu-RunTab .nbmgpu-view")
    expect(tab.locator(".nbmgpu-state")).to_have_text("fertig")
    expect(tab.locator(".nbmgpu-chart-name", has_text="Zeit je Schritt")).to_be_visible()
    expect(tab.locator(".nbmgpu-verified")).to_contain_text("verglichen")
    expect(tab.locator(".nbmgpu-rank-state").first).to_have_text("fertig")
    shoot("german-tab")
    check_words(sidebar)
    check_words(tab)


def check_words(shown: Locator) -> None:
    """Check texts and accessible names."""
    names = [name or "" for name in shown.evaluate(ACCESSIBLE_NAMES)]
    found = ENGLISH.findall("\n".join([shown.inner_text(), *names]))
    assert not found, (found, shown.inner_text(), names)
