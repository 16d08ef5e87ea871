"""Blocks: the repeated parts of a model, whose activations ``--checkpointing`` recomputes."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _NormBase


def blocks(root: nn.Module) -> list[nn.Module]:
    """Return the outermost repeated parts of ``root``, worth to be computed twice.

    These are members of a ``ModuleList``, and of a ``Sequential`` if they have parts of
    their own.  Batch normalisation would update its running statistics twice, so what
    holds some is no block.
    """
    found: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for parent in root.modules():
        if parent in inside or not isinstance(parent, nn.ModuleList | nn.Sequential):
            continue
        for child in parent.children():
            composite = isinstance(parent, nn.ModuleList) or any(True for _ in child.children())
            is_container = isinstance(child, nn.ModuleList | nn.ModuleDict)
            counts = any(
                isinstance(m, _NormBase) and m.track_running_stats for m in child.modules()
            )
            if (
                composite
                and not is_container
                and not counts
                and any(True for _ in child.parameters())
            ):
                found.append(child)
                inside.update(child.modules())
    return list(dict.fromkeys(found))
