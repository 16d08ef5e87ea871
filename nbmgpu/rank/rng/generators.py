"""Finds the random number generators that code may draw from, and reads their states."""

from __future__ import annotations

import random
import sys
from collections.abc import Collection, Mapping
from types import FrameType
from typing import Any

import numpy as np
import torch

from nbmgpu.environment.accelerator import initialized_module

GENERATOR_TYPES = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)


def generators_in(values: Mapping[str, Any], excluded: Collection[int]) -> list[Any]:
    """Return the generators among ``values``, without those whose ids are ``excluded``.

    Samplers draw from the excluded ones, alike on all ranks.
    """
    found = [value for value in list(values.values()) if isinstance(value, GENERATOR_TYPES)]
    return [generator for generator in found if id(generator) not in excluded]


def reachable_generators(frame: FrameType | None, excluded: Collection[int]) -> list[Any]:
    """Return the generators that the loop in ``frame`` may draw from, without ``excluded`` ids.

    These are global variables of the cell, local variables of the functions on the call stack,
    and attributes of objects of the notebook's own classes.
    """
    tables = [vars(sys.modules["__main__"])]
    while frame is not None and frame.f_code.co_name != "<module>":  # the shell is below that
        tables.append(frame.f_locals)
        frame = frame.f_back
    values = [value for table in tables for value in list(table.values())]
    own = (value for value in values if type(value).__module__ == "__main__")
    tables += [value.__dict__ for value in own if isinstance(getattr(value, "__dict__", 0), dict)]
    found = [each for table in tables for each in generators_in(table, excluded)]
    return list({id(each): each for each in found}.values())


def sampler_generator_ids(loader: Any) -> set[int]:
    """Return the ids of the generators that a loader and its samplers draw from."""
    holders = (loader, loader.sampler, loader.batch_sampler)
    tables = (getattr(holder, "__dict__", {}) for holder in holders)
    return {
        id(v) for table in tables for v in list(table.values()) if isinstance(v, GENERATOR_TYPES)
    }


def state_of(generator: Any) -> Any:
    """Return a generator's state, in a form that can be compared with ``==``."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return repr(generator.get_state(legacy=False))
    try:
        return generator.getstate()
    except NotImplementedError:  # SystemRandom, which has no state
        return None


def torch_states() -> list[bytes]:
    """Return the states of torch's default generators, of the CPU and of the current GPU."""
    states = [torch.get_rng_state()]
    _, module = initialized_module()
    if module is not None:
        states.append(module.get_rng_state())
    return [state.numpy().tobytes() for state in states]
