"""The idioms, by what they vary: each table is a module with a list ``IDIOMS``."""

from __future__ import annotations

import importlib
import itertools

from idioms.idiom import Idiom

TABLES: dict[str, list[Idiom]] = {
    name: importlib.import_module(f"{__name__}.{name}").IDIOMS
    for name in (
        "loaders", "samplers", "iteration", "read_ahead", "evaluation", "losses", "reductions",
        "divisors", "optimizers", "models", "model_calls", "transformers", "shared",
    )
}  # fmt: skip

BY_NAME = {idiom.name: idiom for idiom in itertools.chain.from_iterable(TABLES.values())}
