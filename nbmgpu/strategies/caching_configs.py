"""Configurations of Hugging Face's models that let them keep keys and values of attention."""

from __future__ import annotations

from typing import Any

from torch import nn


def caching_configs(root: nn.Module) -> list[Any]:
    """Return the configurations in ``root`` whose ``use_cache`` is True, each once."""
    found: dict[int, Any] = {}
    for module in root.modules():
        for name in ("config", "generation_config"):
            config = getattr(module, name, None)
            if getattr(config, "use_cache", None) is True:
                found[id(config)] = config
    return list(found.values())
