"""What a cell reads from the notebook and what it binds there."""

from .cell import Cell, read_cell

__all__ = ["Cell", "read_cell"]
