"""Tells whether this process is a rank, for functions that notebooks and cells both call."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nbmgpu.errors import LaunchError, compose

if TYPE_CHECKING:
    from nbmgpu.rank.session import Session


def session_here() -> Session | None:
    """Return the session of the rank that this process is, None in a notebook.

    Looked up where a rank has it: to import it would be to import torch.
    """
    module = sys.modules.get("nbmgpu.rank.session")
    return None if module is None else module.current


def refuse_inside_a_rank() -> None:
    """Raise LaunchError in a rank: runs do not nest."""
    if session_here() is not None:
        what = "This is a rank of a run already"
        allowed = "A run cannot start another one"
        raise LaunchError(compose(what, allowed, "the call in a cell of its own, without %%mgpu"))
