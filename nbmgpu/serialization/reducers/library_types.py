"""Reducers for transformers and accelerate."""

from __future__ import annotations

from typing import Any


def reduce_conversion(conversion: Any) -> Any:
    """Reduce accelerate's float32 conversion, which refuses to be pickled."""
    return type(conversion), (conversion.model_forward,)  # the default raises


def reduce_collector(collector: Any) -> Any:
    """Reduce the variable that transformers' hooks read: it is the library's, in every process.

    A model has these hooks after it has returned hidden states or attentions.
    """
    return _collector, ()


def _collector() -> Any:
    from transformers.utils import output_capturing

    return output_capturing._active_collector
