"""Repeated blocks of a model, whose activations ``--checkpointing`` recomputes."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _NormBase


def blocks(root: nn.Module) -> list[nn.Module]:
    """Return the outermost repeated blocks of ``root``.

    These are the members of a ``ModuleList``, and those members of a ``Sequential`` that have
    submodules.  Blocks with batch normalization are left out: a second forward pass would update
    the running statistics again.
    """
    found: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for parent in root.modules():
        if parent in inside or not isinstance(parent, nn.ModuleList | nn.Sequential):
            continue
        for child in parent.children():
            composite = isinstance(parent, nn.ModuleList) or any(True for _ in child.children())
            is_container = isinstance(child, nn.ModuleList | nn.ModuleDict)
            has_statistics = any(
                isinstance(m, _NormBase) and m.track_running_stats for m in child.modules()
            )
            if (
                composite
                and not is_container
                and not has_statistics
                and any(True for _ in child.parameters())
            ):
                found.append(child)
                inside.update(child.modules())
    return list(dict.fromkeys(found))
