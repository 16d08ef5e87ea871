"""Static analysis of a cell: which names it reads from the notebook and which it binds."""

from .cell import Cell, read_cell

__all__ = ["Cell", "read_cell"]
