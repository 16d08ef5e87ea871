"""Objects to one file and back, with their identity.

``ship`` writes what a cell reads, ``receive`` maps it in a rank; ``send_back``
writes what the rank made of it, ``adopt`` puts that into the notebook's own
objects.
"""

from .adoption import Returned, UnreadableError, adopt
from .back import send_back
from .container import is_whole
from .copies import read_copies, write_copies
from .shipping import Received, Shipment, receive, ship

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
