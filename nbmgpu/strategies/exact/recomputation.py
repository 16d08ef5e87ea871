"""Checkpoints in a call on this rank's samples, which compute again after the call has ended."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from nbmgpu.patches import PatchStack
from nbmgpu.strategies.sequence.region import Region

from .region import BatchRegion

if TYPE_CHECKING:
    from .models import SplitModels


def patch_checkpoint(patches: PatchStack, models: SplitModels) -> None:
    """Let what a checkpoint computes again act on the region in which it was computed.

    Where it was computed outside of one, modules that ``models`` has wrapped since run whole.
    """

    def wrap(plain: Callable[..., Any]) -> Callable[..., Any]:
        def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            region = Region.current
            if not isinstance(region, BatchRegion):
                return plain(models.as_of_now(function), *args, **kwargs)
            draws = region.draws
            number = len(draws.places) if draws else 0

            def in_region(*args: Any, **kwargs: Any) -> Any:
                if Region.current is region:
                    return function(*args, **kwargs)
                with region.active(), draws.repeated(number) if draws else nullcontext():
                    return function(*args, **kwargs)

            return plain(in_region, *args, **kwargs)

        return checkpoint

    patches.wrap("torch.utils.checkpoint._checkpoint_without_reentrant_generator", wrap)
