"""Warning filters and log levels of the notebook apply to the ranks."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap

import pytest

from nbmgpu.environment import logging_state

NOTEBOOK = """
import logging, sys, warnings
from pathlib import Path
import nbmgpu

warnings.filterwarnings("ignore", message="of the .* kind")
warnings.filterwarnings("ignore", category=FutureWarning, module="elsewhere")
logging.basicConfig(level=logging.INFO, format="%(levelname)s of %(name)s: %(message)s")
logging.getLogger("quiet").setLevel(logging.ERROR)
own = logging.getLogger("own")
own.propagate = False
own.addHandler(logging.FileHandler("own.log"))
own.addHandler(logging.StreamHandler(sys.stdout))
filtered = logging.getLogger("filtered")
filtered.setLevel(logging.DEBUG)
filtered.addHandler(logging.StreamHandler())
filtered.addFilter(lambda record: False)  # as sentry's

CELL = '''
warnings.warn("of the ignored kind")
warnings.warn("not filtered")
warnings.warn("from here", FutureWarning)
logging.info("an epoch")
logging.debug("a detail")
logging.getLogger("quiet").warning("too much")
logging.getLogger("filtered").debug("unwanted")
for step in range(3):
    own.info(f"step {step}")
'''
print("RANKS", file=sys.stderr, flush=True)
own.info("before")
nbmgpu.run(CELL, globals(), gpus=2, cpu=True)
own.info("after")
print("FILE", Path("own.log").read_text().split())
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("verbosity")
    script = folder / "notebook.py"
    script.write_text(textwrap.dedent(NOTEBOOK))
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=folder,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("message", ["not filtered", "from here", "INFO of root: an epoch"])
def test_visible_messages_appear_once(output: str, message: str) -> None:
    assert output.count(f"{message}\n") == 1


@pytest.mark.parametrize("message", ["of the ignored kind", "a detail", "too much", "unwanted"])
def test_filtered_messages_do_not_appear(output: str, message: str) -> None:
    assert message not in output


def test_a_logger_of_the_notebook_has_its_handlers_in_ranks(output: str) -> None:
    """A file has each line once, from rank 0."""
    lines = "['before', 'step', '0', 'step', '1', 'step', '2', 'after']"
    assert f"FILE {lines}\n" in output
    assert output.count("step 1\n") == 1


def test_libraries_add_their_own_handlers() -> None:
    """Lightning's logger would have two in a rank, and write each message twice."""
    names = "pytest.own", "of_notebook"
    handlers = [logging.StreamHandler(sys.stderr) for _ in names]
    for name, handler in zip(names, handlers, strict=True):
        logging.getLogger(name).addHandler(handler)
    try:
        captured = {name for name, _ in logging_state.capture()["handlers"]}
    finally:
        for name, handler in zip(names, handlers, strict=True):
            logging.getLogger(name).removeHandler(handler)
    assert captured & set(names) == {"of_notebook"}
