"""Objects to one file and back, with their identity.

``serialize`` writes what a cell reads, ``load_bundle`` maps it in a rank; ``save_result``
writes what the rank made of it, ``restore_result`` puts that into the notebook's own
objects.

- Both ways: ``codec`` pickles; ``container`` is the file, ``layout`` where things lie in it,
  ``place`` the memory or file that it is in, ``filemap`` that as memory.
- There: ``shipping``; ``blocks`` finds the bytes behind tensors and arrays, ``mapped`` arrays that
  are files already, ``overrides`` functions put into libraries, ``explain_pickle_error`` why something cannot go.
- In the rank: ``memory`` and ``views`` make tensors and arrays again.
- Back: ``back``, ``states``, ``flat`` and ``contents`` in the rank; ``adoption`` and ``putting`` in
  the kernel; ``placeholders`` stands in for what cannot be made there; ``copies`` are other ranks'
  values.
- What has changed: ``bulk`` by bytes; ``pagemap`` and ``watch`` by the system's page tables, in a
  rank and in the notebook.
- ``mending``, ``garbage``: types that pickle badly, and the collector's rest.
"""

from .bundle import Bundle, ReceivedBundle, load_bundle, serialize
from .container import is_complete
from .result_reader import RestoredResult, UnreadableError, restore_result
from .result_writer import save_result
from .value_copies import read_copies, write_copies

VALUE = "__nbmgpu_value__"
"""Name under which the value of the cell's last line travels."""

__all__ = [
    "VALUE",
    "Bundle",
    "ReceivedBundle",
    "RestoredResult",
    "UnreadableError",
    "is_complete",
    "load_bundle",
    "read_copies",
    "restore_result",
    "save_result",
    "serialize",
    "write_copies",
]
