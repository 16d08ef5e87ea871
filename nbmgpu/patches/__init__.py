"""Functions, classes and private names of other libraries that nbmgpu replaces or relies on.

Every such name is an entry of ``TABLE``: what nbmgpu does with it, why, which versions of the
library it was tested with, and what happens where a version has no such name.  ``PatchStack``
installs and removes patches, and accepts only names from the table.  ``%mgpu info --patches``
prints the table; ``tests/test_patches.py`` checks it against the installed libraries and against
nbmgpu's source.

Nothing here imports another library until it is asked about.
"""

from .stack import PatchStack, explain_missing, on_missing
from .table import TABLE, entry_of, is_declared
from .target import Kind, Library, PatchTarget

__all__ = [
    "TABLE",
    "Kind",
    "Library",
    "PatchStack",
    "PatchTarget",
    "entry_of",
    "explain_missing",
    "is_declared",
    "on_missing",
]
