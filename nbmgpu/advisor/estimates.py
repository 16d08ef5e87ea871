"""Builds the rows of an ``Advice``: one ``Estimate`` for each strategy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from nbmgpu.devices.requirements import missing_requirement, refused_device
from nbmgpu.errors import OptionError
from nbmgpu.formatting import format_bytes
from nbmgpu.strategies import profile_of
from nbmgpu.strategies.mesh_sizes import mesh_sizes

from . import memory_model, recommendation, speed_model
from .advice import Estimate, Part
from .available_memory import AvailableMemory
from .node_traffic import estimate_traffic
from .request import AdviceRequest
from .row_kinds import RowKind
from .training_setup import TrainingSetup


def magic_line(
    kind: RowKind, request: AdviceRequest, available: AvailableMemory, ranks: int
) -> tuple[str, str]:
    """Return the ``%%mgpu`` line for a row, and why there is none; one of them is empty.

    Args:
        kind: the row.
        request: the options of the line.
        available: the devices.
        ranks: number of ranks, where the request has none.
    """
    if requirement := missing_requirement(profile_of(kind.strategy)):
        return "", f"needs {requirement.needed}: %pip install {requirement.install}"
    if available.on_gpu and (why := refused_device(profile_of(kind.strategy), available.kind)):
        return "", why
    if request.is_elsewhere and profile_of(kind.strategy).in_one_process:
        return "", "is one process on one machine"
    told = None if request.is_elsewhere else request.gpus  # indices are those of this machine
    gpus = ranks // (request.nodes or 1) if told is None else told
    try:
        wanted = dataclasses.replace(request, gpus=gpus)
        options = wanted.run_options(kind.strategy, **kind.options)
        mesh_sizes(profile_of(options.strategy), ranks, options)
    except OptionError as error:
        first = str(error).partition("\n")[0]
        return "", (first.partition(": ")[2] or first).rstrip(".")
    if options.strategy != kind.strategy:
        return "", f"the mesh of this line is one of {options.strategy}"
    return options.command, ""


def estimate_rows(
    request: AdviceRequest,
    setups: Mapping[RowKind, TrainingSetup],
    available: AvailableMemory,
    unsupported: Mapping[str, str],
) -> list[Estimate]:
    """Return the estimates of all rows.

    Args:
        request: the training options.
        setups: what is trained, and on what, for each row.
        available: the free memory.
        unsupported: strategies or rows that do not support the model or the optimizer, with the
            reasons.
    """
    rows = []
    for kind, setup in setups.items():
        line, problem = magic_line(kind, request, available, setup.ranks)
        if reason := unsupported.get(kind.name) or unsupported.get(kind.strategy):
            line, problem = "", reason
        row = _estimate(kind.name, kind.strategy, line, problem, setup, available)
        if available.nodes > 1:
            traffic = estimate_traffic(kind.name, setup, available.ranks_per_node, request.link)
            row = dataclasses.replace(row, traffic=traffic)
        rows.append(row)
    return rows


def _estimate(
    name: str,
    strategy: str,
    line: str,
    problem: str,
    setup: TrainingSetup,
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
