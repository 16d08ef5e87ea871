"""Reports a version of torch that nbmgpu was not tested with, once per kernel."""

from __future__ import annotations

from .table.libraries import TORCH

UNTESTED = (
    "torch {installed} is not among the versions that nbmgpu was tested with ({tested}). nbmgpu "
    "replaces functions of torch, and another version may call them differently, so numbers may "
    "differ from those of one device without an error. Compare a short run with the same cell on "
    "one device, or install a tested version: pip install 'torch=={last}.*'. %mgpu info --patches "
    "lists what is replaced, and what this version lacks."
)

_reported = False


def untested_notice() -> str:
    """Return the notice for an untested version of torch, once per process; else nothing."""
    global _reported
    installed = "" if _reported else TORCH.installed
    _reported = True
    if not installed or TORCH.was_tested_with(installed):
        return ""
    tested = TORCH.tested.removeprefix("torch ")
    return UNTESTED.format(installed=installed, tested=tested, last=TORCH.last)
