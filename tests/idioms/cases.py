"""Idioms as parameters of tests."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet

from .idiom import Idiom


def on_ranks(idioms: Iterable[Idiom], every: int, *paths: str) -> list[ParameterSet]:
    """Return ``(idiom, ranks)`` for each number of ranks that an idiom names.

    ``make test`` runs each idiom with the first number, and every ``every``-th of the other cases;
    the rest is marked ``matrix`` with ``paths``.
    """
    cases, others = [], 0
    for idiom in idioms:
        for ranks in idiom.ranks:
            is_first = ranks == idiom.ranks[0]
            others += not is_first
            marks = [] if is_first or others % every == 1 else [pytest.mark.matrix(*paths)]
            name = f"{idiom.name}, {ranks} ranks"
            cases.append(pytest.param(idiom, ranks, id=name, marks=marks))
    return cases
