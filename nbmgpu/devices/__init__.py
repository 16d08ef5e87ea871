"""The devices of this machine: what there is, what a strategy needs, and where ranks go."""
