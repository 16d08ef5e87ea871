"""What the notebook ignores and logs is ignored and logged by the ranks."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

NOTEBOOK = """
import logging, sys, warnings
import nbmgpu

warnings.filterwarnings("ignore", message="of the .* kind")
warnings.filterwarnings("ignore", category=FutureWarning, module="elsewhere")
logging.basicConfig(level=logging.INFO, format="%(levelname)s of %(name)s: %(message)s")
logging.getLogger("quiet").setLevel(logging.ERROR)

CELL = '''
warnings.warn("of the boring kind")
warnings.warn("of another sort")
warnings.warn("from here", FutureWarning)
logging.info("an epoch")
logging.debug("a detail")
logging.getLogger("quiet").warning("too much")
'''
print("RANKS", file=sys.stderr, flush=True)
nbmgpu.run(CELL, globals(), gpus=2, cpu=True)
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("verbosity")
    script = folder / "notebook.py"
    script.write_text(textwrap.dedent(NOTEBOOK))
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("words", ["of another sort", "from here", "INFO of root: an epoch"])
def test_what_the_notebook_lets_through_is_said_once(said: str, words: str) -> None:
    assert said.count(f"{words}\n") == 1


@pytest.mark.parametrize("words", ["of the boring kind", "a detail", "too much"])
def test_what_it_has_silenced_stays_silent(said: str, words: str) -> None:
    assert f": {words}" not in said
