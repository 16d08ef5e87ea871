"""Builds the rows of an ``Advice``: one ``Estimate`` for each strategy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from nbmgpu.devices.requirements import missing_requirement
from nbmgpu.errors import OptionError
from nbmgpu.formatting import format_bytes
from nbmgpu.strategies import profile_of, strategy_names

from . import memory_model, recommendation, speed_model
from .advice import Estimate, Part
from .available_memory import AvailableMemory
from .request import AdviceRequest

VARIANTS = {"fsdp": ("fsdp --cpu-offload",)}
"""Strategies with options that have a row of their own."""


def magic_line(name: str, strategy: str, request: AdviceRequest, ranks: int) -> tuple[str, str]:
    """Return the ``%%mgpu`` line for a row, and why there is none; one of them is empty.

    Args:
        name: name of the row: the strategy, or one of its ``VARIANTS``.
        strategy: name of the strategy.
        request: the options of the line.
        ranks: number of ranks, where the request has none.
    """
    if requirement := missing_requirement(profile_of(strategy)):
        return "", f"needs {requirement.needed}: %pip install {requirement.install}"
    extra: dict[str, Any] = {"cpu_offload": True} if name != strategy else {}
    gpus = ranks if request.gpus is None else request.gpus
    try:
        return dataclasses.replace(request, gpus=gpus).run_options(strategy, **extra).command, ""
    except OptionError as error:
        first = str(error).partition("\n")[0]
        return "", (first.partition(": ")[2] or first).rstrip(".")


def estimate_rows(
    request: AdviceRequest,
    setup: memory_model.TrainingSetup,
    available: AvailableMemory,
    unsupported: Mapping[str, str],
) -> list[Estimate]:
    """Return the estimates of all strategies.

    Args:
        request: the training options.
        setup: what is trained, and on what.
        available: the free memory.
        unsupported: strategies that do not support the optimizer, with the reasons.
    """
    rows = []
    for strategy in strategy_names():
        variants = VARIANTS.get(strategy, ()) if setup.on_gpu else ()
        for name in (strategy, *variants):
            line, problem = magic_line(name, strategy, request, setup.ranks)
            if unsupported.get(strategy):
                line, problem = "", unsupported[strategy]
            rows.append(_estimate(name, strategy, line, problem, setup, available))
    return rows


def _estimate(
    name: str,
    strategy: str,
    line: str,
    problem: str,
    setup: memory_model.TrainingSetup,
    available: AvailableMemory,
) -> Estimate:
    profile = profile_of(strategy)
    memory = memory_model.estimate_memory(name, setup)
    parts = () if memory is None else tuple(
        Part(kind, round(size.low), round(size.high)) for kind, size in memory.items()
    )  # fmt: skip
    total = None if memory is None else memory_model.total(memory)
    complete = setup.activations is not None
    fits = (
        "unknown" if total is None else recommendation.classify_fit(total, available.free, complete)
    )
    costs = profile.costs
    if name.endswith("--cpu-offload"):
        costs = "copies shards to and from the host; the optimizer runs on the CPU"
    if "offload" in name:
        needed = setup.model_size.model_states
        costs += f"; {format_bytes(needed)} of the host's memory"
        if available.host is not None and needed > available.host and not problem:
            free = format_bytes(available.host)
            fits, problem = (
                "no",
                f"needs {format_bytes(needed)} of the host's memory, {free} is free",
            )
    return Estimate(
        name=name,
        summary=profile.summary,
        parts=parts,
        low=0 if total is None else round(total.low),
        high=0 if total is None else round(total.high),
        fits=fits if line else "no",
        problem=problem,
        speed=speed_model.estimate_speed(name, setup),
        costs=costs,
        source=memory_model.source_of(name) if memory else "",
        line=line,
    )
