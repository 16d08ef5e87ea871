"""The devices of this machine, what a strategy requires, and the placement of ranks."""
