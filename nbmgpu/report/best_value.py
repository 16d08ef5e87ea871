"""Which value of a metric is the best one, by the metric's name."""

from __future__ import annotations

import re
from typing import Literal

Best = Literal["", "lowest", "highest"]

PREFIX = re.compile(r"^(?:train|training|val|valid|validation|eval|test)[/_.]")
"""What metrics of training and evaluation begin with."""

LOWER = re.compile(r"loss|error|perplexity|\b(?:mse|mae|rmse|nll|wer|cer)\b")
HIGHER = re.compile(
    r"^(?:acc|accuracy|top[-_ ]?\d+)|accuracy$|\b(?:f1|auc|auroc|ap|map|iou|miou|dice)\b"
    r"|\b(?:psnr|ssim|r2)\b|precision|recall|score|bleu|rouge|reward|per_second|/s$"
)
"""Names of metrics whose best value is the lowest or the highest; others have no best value."""


def best_value(metric: str) -> Best:
    """Return which value of ``metric`` is the best one; empty if its name does not say so."""
    name = PREFIX.sub("", metric.lower()).replace("_", " ").replace("per second", "per_second")
    if LOWER.search(name):
        return "lowest"
    return "highest" if HIGHER.search(name) else ""
