"""What hooks of transformers record inside of a model, such as attention weights."""

from __future__ import annotations

import sys


def recorded_inside_layers() -> list[str]:
    """Return what is recorded now, except hidden states, which are outputs of layers."""
    library = sys.modules.get("transformers.utils.output_capturing")
    collected = None if library is None else library._active_collector.get()
    return [key for key in collected or () if key[:1] != "_" and key != "hidden_states"]
