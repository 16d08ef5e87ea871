"""Several runs side by side: options, results and curves in one table and one set of charts."""

from .payload import MAX_RUNS, RunComparison, comparison_of

__all__ = ["MAX_RUNS", "RunComparison", "comparison_of"]
