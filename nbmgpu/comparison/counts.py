"""The lists of numbers that ``%%mgpu scale`` compares: of ranks, or of nodes."""

from __future__ import annotations

import re
from typing import Any

from nbmgpu.devices.placement import DEFAULT_CPU_RANKS
from nbmgpu.devices.probe import Machine, probe
from nbmgpu.options.values import InvalidValueError, Problem, list_of
from nbmgpu.runs.engine_plugins import DEFAULT_ENGINE


def validate_rank_counts(value: object) -> tuple[int, ...] | None:
    """Return different numbers of ranks in ascending order; None for the default."""
    return _counts(value, "ranks", "1,2,4")


def validate_node_counts(value: object) -> tuple[int, ...] | None:
    """Return different numbers of nodes in ascending order; None for this machine alone."""
    return _counts(value, "nodes", "1,2")


def _counts(value: object, what: str, example: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    words = [*map(str, list_of(value))]
    counts = tuple(sorted({int(word) for word in words if re.fullmatch(r"0*[1-9]\d*", word)}))
    if len(counts) < len(words) or not counts:
        problem = Problem(
            f"{value!r} does not list different numbers of {what}",
            f"Expected integers from 1, such as {example}",
        )
        raise InvalidValueError(problem, counts if max(counts, default=1) > 1 else (1, 2))
    return counts


def default_rank_counts(machine: Machine, cpu: bool = False) -> tuple[int, ...]:
    """Return 1, 2, 4, ... up to the number of GPUs, else of cores."""
    on_gpu = machine.cuda and not cpu
    most = len(machine.gpus) if on_gpu else max(DEFAULT_CPU_RANKS, machine.cores)
    return tuple(1 << power for power in range(most.bit_length()))


def rank_count_completions() -> tuple[str, ...]:
    """Return what Tab offers as numbers of ranks."""
    return tuple(map(str, default_rank_counts(probe())))


def contradictions(values: dict[str, Any]) -> dict[str, Problem]:
    """Return a problem for each option that contradicts the numbers; correct ``values``.

    Args:
        values: ``nodes`` is a number, several of them, or None.
    """
    nodes, gpus = values["nodes"], values["gpus"]
    counts = nodes if isinstance(nodes, tuple) else (nodes or 1,)
    listed = ",".join(map(str, counts))
    problems: dict[str, Problem] = {}
    if max(counts) > 1 and values["engine"] == DEFAULT_ENGINE:
        what = f"--nodes {listed} needs an engine for several machines"
        problem = Problem(
            what, "The default engine is this machine alone; slurm and ray have several"
        )
        problems |= {"nodes": problem, "engine": problem}
        values["engine"] = "slurm"
    if len(counts) > 1 and isinstance(gpus, tuple) and len(gpus) > 1:
        what = f"--nodes {listed} and --gpus {','.join(map(str, gpus))} are both lists"
        allowed = "Compare several --nodes with one --gpus, or several --gpus with one --nodes"
        problems["gpus"] = Problem(what, allowed)
        values["gpus"] = gpus[-1:]
    return problems
