"""A Python that a user has chosen for the nodes is asked whether it can run ranks."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from nbmgpu.engines.multi_node.interpreter import CHECK, check_of_python


def answer(code: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_this_python_can() -> None:
    assert answer(check_of_python()) == (0, "")


@pytest.mark.parametrize(
    ("wanted", "packages", "words"),
    [
        ("2.7", {}, "is Python 3.1., and the notebook's is 2.7: .*python=/path/to/python2.7"),
        (
            ".".join(map(str, sys.version_info[:2])),
            {"torch": "torch==1.0", "no_such": "no-such==2.0", "nor_such": "nor-such"},
            "has no no_such and no nor_such. Install there: .* -m pip install no-such==2.0 nor",
        ),
    ],
)  # fmt: skip
def test_another_one_says_why_not(wanted: str, packages: dict[str, str], words: str) -> None:
    code, said = answer(CHECK.format(wanted=wanted, packages=packages))
    assert code == 1
    assert len(said.splitlines()) == 1, "no traceback"
    assert re.search(words, said)
