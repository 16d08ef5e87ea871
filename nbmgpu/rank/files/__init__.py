"""Files that a cell writes, opens or saves: written once, by rank 0."""
