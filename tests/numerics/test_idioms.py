"""Every idiom leaves on ranks what it leaves on one device."""

from __future__ import annotations

import importlib

import pytest
from idiom import Idiom, compare

TABLES = ("loaders", "evaluation", "losses", "optimizers", "models", "transformers")
QUIET = {"rank-0-values"}
"""Topics that any cell may be given: its last batch is rank 0's."""

CASES = [
    pytest.param(idiom, ranks, id=f"{table}: {idiom.name}" + (f", {ranks} ranks" * (ranks > 2)))
    for table in TABLES
    for idiom in importlib.import_module(f"cells_{table}").IDIOMS
    for ranks in idiom.ranks
]


@pytest.mark.parametrize(("idiom", "ranks"), CASES)
def test_ranks_leave_what_one_device_leaves(idiom: Idiom, ranks: int, record_property) -> None:
    result = compare(idiom, ranks)
    record_property("error", result.error)
    assert not result.wrong, "\n".join(result.wrong)
    assert result.split() == idiom.split
    assert result.notices - QUIET == idiom.notices
