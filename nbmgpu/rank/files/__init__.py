"""Files that a cell writes, opens or saves: rank 0 writes each of them once."""
