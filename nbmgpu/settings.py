"""torch's global settings, which decide what numbers a cell computes."""

from __future__ import annotations

import sys
from typing import Any


def capture() -> dict[str, Any]:
    """Return the settings of this process; none where torch is not imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {
        "dtype": torch.get_default_dtype(),
        "matmul": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn": {
            name: getattr(torch.backends.cudnn, name)
            for name in ("benchmark", "deterministic", "enabled")
        },
        "anomaly": torch.is_anomaly_enabled(),
        "threads": torch.get_num_threads(),
    }


def apply(settings: dict[str, Any]) -> None:
    """Give this process the settings of another one, but no more threads than it has."""
    if not settings:
        return
    import torch

    torch.set_default_dtype(settings["dtype"])
    torch.set_float32_matmul_precision(settings["matmul"])
    here, wanted = capture(), settings["deterministic"]
    if (here["deterministic"], here["warn_only"]) != (wanted, settings["warn_only"]):
        # Only then: to set it imports all of torch's compiler.
        torch.use_deterministic_algorithms(wanted, warn_only=settings["warn_only"])
    for name, value in settings["cudnn"].items():
        setattr(torch.backends.cudnn, name, value)
    torch.autograd.set_detect_anomaly(settings["anomaly"])
    torch.set_num_threads(min(torch.get_num_threads(), settings["threads"]))
