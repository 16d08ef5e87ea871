"""Engines: where the ranks of a run are placed, started, watched and ended."""
