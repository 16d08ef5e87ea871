"""Objects to one file and back, with their identity.

``ship`` writes what a cell reads, ``receive`` maps it in a rank; ``send_back``
writes what the rank made of it, ``adopt`` puts that into the notebook's own
objects.

- Both ways: ``codec`` pickles; ``container`` is the file, ``layout`` where things lie in it,
  ``place`` the memory or file that it is in, ``filemap`` that as memory.
- There: ``shipping``; ``blocks`` finds the bytes behind tensors and arrays, ``mapped`` arrays that
  are files already, ``patches`` functions put into libraries, ``explain`` why something cannot go.
- In the rank: ``memory`` and ``views`` make tensors and arrays again.
- Back: ``back``, ``states``, ``flat`` and ``contents`` in the rank; ``adoption`` and ``putting`` in
  the kernel; ``absent`` stands in for what cannot be made there; ``copies`` are other ranks'
  values.
- What has changed: ``bulk`` by bytes; ``pagemap`` and ``watch`` by the system's page tables, in a
  rank and in the notebook.
- ``mending``, ``garbage``: types that pickle badly, and the collector's rest.
"""

from .container import is_whole
from .plain_copies import read_copies, write_copies
from .restore import Returned, UnreadableError, adopt
from .save_result import send_back
from .transfer import Received, Shipment, receive, ship

VALUE = "__nbmgpu_value__"
"""Name under which the value of the cell's last line travels."""

__all__ = [
    "VALUE",
    "Received",
    "Returned",
    "Shipment",
    "UnreadableError",
    "adopt",
    "is_whole",
    "read_copies",
    "receive",
    "send_back",
    "ship",
    "write_copies",
]
