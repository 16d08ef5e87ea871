"""Serializes Python objects to one file and restores them, preserving object identity.

The kernel calls ``serialize`` to pickle what a cell reads, and a rank calls ``load_bundle`` to map
it.  The rank calls ``save_result`` to write what the cell has changed, and the kernel calls
``restore_result`` to apply that to the notebook's own objects.

- Format: ``container`` is the file, ``file_layout`` the offsets of its blocks, ``storage`` the
  memory or file that it is in, ``file_mapping`` maps it, ``threaded_copy`` compares and copies.
- Pickling: ``pickler``, with ``reducers`` and ``notebook_types``; ``memory_blocks`` collects the
  memory behind tensors and arrays, ``memmap_arrays`` handles arrays that are files already,
  ``library_overrides`` finds functions set on libraries, ``pickle_errors`` explains failures.
- Loading: ``bundle``, ``address_space`` and ``tensor_views``.
- Results: ``result_writer``, ``received_blocks``, ``object_state``, ``flat_encoding`` and
  ``content_snapshots`` in the rank; ``result_reader``, ``state_setters`` and ``placeholders`` in
  the kernel; ``value_copies`` for values of the other ranks, and ``joined_parts`` for what they
  hold of a batch.  ``value_tree``: the leaves of a value.
- Ranks that stay for the next cell: ``held_objects``.
- Change detection: ``page_changes`` in a rank, ``write_tracking`` in the kernel.
"""

from .bundle import Bundle, ReceivedBundle, load_bundle, serialize
from .container import is_complete
from .held_objects import NOTHING_STAYS, STAYS, HeldObjects, StayingObjects, by_key, reachable
from .result_reader import RestoredResult, UnreadableError, restore_result
from .result_writer import save_result
from .value_copies import read_copies, write_copies

VALUE = "__nbmgpu_value__"
"""Name under which the value of the cell's last expression is sent."""

RANK_PART = "__nbmgpu_part__"
"""Name under which a rank other than 0 sends a ``RankPart``."""

__all__ = [
    "NOTHING_STAYS",
    "RANK_PART",
    "STAYS",
    "VALUE",
    "Bundle",
    "HeldObjects",
    "ReceivedBundle",
    "RestoredResult",
    "StayingObjects",
    "UnreadableError",
    "by_key",
    "is_complete",
    "load_bundle",
    "reachable",
    "read_copies",
    "restore_result",
    "save_result",
    "serialize",
    "write_copies",
]
