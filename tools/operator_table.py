"""Write docs/operators.md: what shards of a batch mean to each operator of torch.

    python tools/operator_table.py

It tries torch's own samples of operators, in about a minute; see ``tests/rank/operator_survey.py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "tests" / "rank"))

from operator_survey import KNOWN

ROOT = Path(__file__).parents[1]
SURVEY = ROOT / "tests" / "rank" / "operator_survey.py"
PAGE = ROOT / "docs" / "operators.md"

GROUPS = {
    "apart": "Keep samples apart: a shard gives the rows that the whole batch has.",
    "either": "Keep samples apart or combine them, by the dimension that they work along. Where "
    "they are combined, the cell starts again with whole batches.",
    "combined": "Combine samples, or pick them by position, for all arguments tried.",
    "sum": "Add samples up, or average them, for some arguments: ranks add or average results.",
    "random": "Draw random numbers, which are other ones for a shard: the cell starts again with "
    "whole batches.",
    "unknown": "Not followed for some arguments. From there on, only the [comparison with one "
    "device](numbers.md#the-first-steps-are-compared-with-one-device) shows a difference.",
    "no batch": "No sample has a batch as its first dimension, or the batch cannot have more rows.",
}
"""The groups, each with what it means."""

HEAD = """# Operators

<!-- made by tools/operator_table.py -->

What a shard of the batch means to each operator, tried with torch's own samples of {count}
operators (`torch.testing._internal.common_methods_invocations.op_db`, torch {version}). The first
dimension is the batch, which two ranks share evenly or with a row less on one of them; results are
compared with those of the whole batch. What is seen of them in a cell:
[Numbers](numbers.md#how-interactions-between-samples-are-found).

The gradients of operators marked with * are proven as well: those of a batch's rows are the rows of
the whole batch's gradient, and those of weights add up to it.
"""

ODD = """
## Samples for which a rule is wrong

No batch of a training cell looks like these:

| operator | sample |
|---|---|
"""

Counts = Mapping[str, int]
Found = tuple[Counts, str]


def group_of(counts: Counts) -> str:
    """Return the group of an operator with these verdicts."""
    verdicts = counts.keys() - {"wrong", "backward"}
    for group in ("random", "unknown", "sum"):
        if group in verdicts:
            return group
    if not verdicts:
        return "no batch"
    if "local" not in verdicts:
        return "combined"
    return "apart" if verdicts == {"local"} else "either"


def entry(name: str, counts: Counts) -> str:
    """Return an operator as the page shows it."""
    return f"`{name}`" + ("\\*" if "backward" in counts else "")


def survey() -> dict[str, Found]:
    """Try all operators; return the verdicts of each, by name, and a sample whose rule is wrong."""
    done = subprocess.run([sys.executable, SURVEY], stdout=subprocess.PIPE, check=True)
    found: dict[str, Found] = json.loads(done.stdout)
    return found


def page(found: Mapping[str, Found]) -> str:
    """Return the page as Markdown."""
    counts = {name: found[name][0] for name in sorted(found)}
    parts = [HEAD.format(count=len(found), version=torch.__version__.partition("+")[0])]
    for group, meaning in GROUPS.items():
        entries = [entry(name, counts[name]) for name in counts if group_of(counts[name]) == group]
        title = f"{group.capitalize()}: {len(entries)}"
        parts.append(f"\n## {title}\n\n{meaning}\n\n{', '.join(entries)}\n")
    odd = [f"| `{name}` | {reason} |\n" for name, reason in KNOWN.items()]
    return "".join([*parts, ODD, *odd])


if __name__ == "__main__":
    PAGE.write_text(page(survey()))
