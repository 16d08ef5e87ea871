"""What lives inside a rank: one process per device."""
