"""Reads the states in checkpoints that Trainers have written."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

TrainerLibrary = Literal["", "transformers", "lightning"]
"""The library whose Trainer has written a checkpoint; empty for one of a plain loop."""

LIGHTNING_FILE = "lightning.ckpt"


def trainer_states(folder: Path, library: TrainerLibrary) -> dict[str, Any]:
    """Return the states by name, on the CPU: ``model``, ``optimizer``, ``scheduler``."""
    import torch

    def read(path: Path) -> Any:
        return torch.load(path, map_location="cpu", weights_only=False)

    if library == "lightning":
        saved = read(folder / LIGHTNING_FILE)
        optimizers = {f"optimizers[{n}]": s for n, s in enumerate(saved["optimizer_states"])}
        return {"model": saved["state_dict"], **optimizers}
    states: dict[str, Any] = {"model": {}}
    for path in sorted(folder.glob("*.safetensors")):
        from safetensors.torch import load_file

        states["model"] |= load_file(path)
    for path in sorted(folder.glob("pytorch_model*.bin")):
        states["model"] |= read(path)
    for name in ("optimizer", "scheduler"):
        if (folder / f"{name}.pt").exists():
            states[name] = read(folder / f"{name}.pt")
    return states
