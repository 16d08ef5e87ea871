"""torch's global settings, which determine the numbers that a cell computes."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

PRECISIONS = (
    ("generic", "all"),
    *((backend, op) for backend in ("cuda", "mkldnn") for op in ("all", "matmul", "conv", "rnn")),
)
"""Keys of ``torch.backends.*.fp32_precision``, from the general to the particular."""


def capture() -> dict[str, Any]:
    """Return the settings of this process; none where torch is not imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {
        "dtype": torch.get_default_dtype(),
        "matmul": _legacy(torch.get_float32_matmul_precision),
        "precisions": _precisions(torch),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn": {
            name: _legacy(lambda name=name: getattr(torch.backends.cudnn, name))
            for name in ("allow_tf32", "benchmark", "deterministic", "enabled")
        },
        "anomaly": torch.is_anomaly_enabled(),
        "gradients": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
    }


def apply(settings: dict[str, Any]) -> None:
    """Apply settings captured in another process, but no more threads than this one has."""
    if not settings:
        return
    import torch

    torch.set_default_dtype(settings["dtype"])
    if settings["matmul"] is not None:
        torch.set_float32_matmul_precision(settings["matmul"])
    here, wanted = capture(), settings["deterministic"]
    if (here["deterministic"], here["warn_only"]) != (wanted, settings["warn_only"]):
        # Only if it differs: setting it imports all of torch's compiler.
        torch.use_deterministic_algorithms(wanted, warn_only=settings["warn_only"])
    for name, value in settings["cudnn"].items():
        if value is not None:
            setattr(torch.backends.cudnn, name, value)
    for key, precision in settings["precisions"].items():
        if _precisions(torch)[key] != precision:  # a general key may have set it
            set_: Any = torch._C._set_fp32_precision_setter
            set_(*key, precision)
    torch.autograd.set_detect_anomaly(settings["anomaly"])
    torch.set_grad_enabled(settings["gradients"])
    torch.set_num_threads(min(torch.get_num_threads(), settings["threads"]))


def _legacy(get: Any) -> Any:
    """Return a setting; None if torch refuses because ``fp32_precision`` was set instead."""
    with suppress(RuntimeError):
        return get()
    return None


def _precisions(torch: Any) -> dict[tuple[str, str], str]:
    """Return ``fp32_precision`` by key; empty before torch 2.9, which does not have it."""
    get = getattr(torch._C, "_get_fp32_precision_getter", None)
    return {key: get(*key) for key in PRECISIONS} if get else {}
