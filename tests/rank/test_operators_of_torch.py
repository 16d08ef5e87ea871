"""No rule of an operator is believed untested: each is tried on torch's own samples.

docs/operators.md has what was found.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "operator_table.py"))

pytestmark = [pytest.mark.slow, pytest.mark.matrix("nbmgpu/rank/batch_dependence")]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return TOOL["survey"]()


def test_rules_are_right(found: dict[str, Any]) -> None:
    """Apart from samples that no batch looks like; the page gives the reason for each."""
    wrong = {name: sample for name, (_, sample) in found.items() if sample}
    assert {name: wrong[name] for name in wrong.keys() - TOOL["KNOWN"].keys()} == {}


def test_the_page_is_up_to_date(found: dict[str, Any]) -> None:
    assert TOOL["PAGE"].read_text() == TOOL["page"](found), "run tools/operator_table.py"
