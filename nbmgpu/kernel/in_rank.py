"""Whether this process is a rank, for functions that both notebooks and cells call."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nbmgpu.errors import LaunchError, format_message

if TYPE_CHECKING:
    from nbmgpu.rank.session import Session


def session_here() -> Session | None:
    """Return the session of this rank, None in a notebook.

    It is looked up in ``sys.modules``, for importing its module would import torch.
    """
    module = sys.modules.get("nbmgpu.rank.session")
    return None if module is None else module.current


def refuse_inside_a_rank() -> None:
    """Raise LaunchError in a rank: runs do not nest."""
    if session_here() is not None:
        what = "This is a rank of a run already"
        allowed = "A run cannot start another one"
        raise LaunchError(
            format_message(what, allowed, "the call in a cell of its own, without %%mgpu")
        )
