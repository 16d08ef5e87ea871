"""Decides whether a loss can be read where no rank has more than one sample of a batch.

Then sizes are 1.  ``loss / len(x)`` and ``loss / 1`` have the same graph, and a sum that the code
scales by a number may be scaled by ``44 / len(x)``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .reductions import is_mean
from .saved_sizes import is_number

if TYPE_CHECKING:
    from nbmgpu.rank.source_analysis.notebook_code import NotebookCode

    from .graph_path import GraphPath
    from .loss_graph import LossGraph


def may_depend_on_sizes(graph: LossGraph, code: NotebookCode) -> bool:
    """Return whether the size of a shard of one sample may be among the numbers in a loss.

    Args:
        graph: of the loss.
        code: the notebook's; a mean that is divided by 1 is not divided by a size if the code
            scales nothing by sizes.
    """
    for source, path in graph.terms:
        numbers = _numbers(path)
        has_one = any(math.isclose(number, 1.0) for number in numbers)
        if is_mean(source) and has_one and code.scales_by_size:
            return True
        if not is_mean(source) and (has_one or (numbers and code.scales_by_size)):
            return True
    return False


def _numbers(path: GraphPath) -> list[float]:
    return [*path.factors, *(float(divisor) for divisor in path.divisors if is_number(divisor))]
