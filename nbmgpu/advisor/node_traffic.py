"""What a node sends to other nodes in an optimizer step, and how long their link takes for it.

In a ring of n ranks, an all-reduce of S bytes makes each rank send 2 (n - 1)/n S, an all-gather or
a reduce-scatter (n - 1)/n S: the least that is possible (Patarasu and Yuan, Bandwidth optimal
all-reduce algorithms for clusters of workstations, JPDC 69(2), 2009; NCCL's tests compute bus
bandwidth with the same factors).  Ranks are numbered node by node, so a ring in the order of ranks
enters and leaves a node once.  Latency and the wait for the slowest rank are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nbmgpu.errors import OptionError, format_message
from nbmgpu.formatting import format_bytes
from nbmgpu.strategies.mesh_sizes import DP, FSDP

from .speed_model import DEEPSPEED_VOLUMES
from .training_setup import TrainingSetup

SLOW = 50.0
"""Gbit/s for each rank of a node, below which a link counts as slow.

A rule of thumb: 400 Gbit/s for a node of 8 GPUs.  Inside of a node, NVLink 4 has 3,600 per GPU.
"""


@dataclass(frozen=True)
class NodeTraffic:
    """What a node sends to other nodes in an optimizer step.

    Attributes:
        sent: bytes, of all ranks of a node together.
        seconds: how long the link takes for them; None if its speed is not known.
        text: both as text.
    """

    sent: int
    seconds: float | None
    text: str


def parse_link(value: float | str) -> float:
    """Return Gbit/s of a number, or of text such as ``25``, ``25G`` or ``25 Gbit/s``.

    Raises:
        OptionError: it is not a positive, finite number.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:G|Gb|Gbps|Gbit|Gb/s|Gbit/s)?\s*", str(value))
    if match and float(match[1]) > 0:
        return float(match[1])
    what = f"{value!r} is not the speed of a link"
    allowed = "Expected Gbit/s that a node sends, all its network adapters together"
    raise OptionError(format_message(what, allowed, "link=25"))


def is_slow(link: float | None, ranks_per_node: int) -> bool:
    """Return whether a link of a node, in Gbit/s, counts as slow; an unknown one does."""
    return link is None or link / ranks_per_node < SLOW


def link_note(link: float | None, ranks_per_node: int) -> str:
    """Return what is assumed of the link between nodes."""
    if link is None:
        return (
            "How fast the nodes are connected is not known, so a slow link is assumed; --link 25 "
            "tells that a node sends 25 Gbit/s."
        )
    verdict = "slow: less than" if is_slow(link, ranks_per_node) else "fast: at least"
    return (
        "Between nodes: what a node sends in an optimizer step, and how long that takes at "
        f"{link:g} Gbit/s; computation may hide it. {link / ranks_per_node:.3g} Gbit/s for each "
        f"rank count as {verdict} {SLOW:g}."
    )


def traffic_sentence(traffic: NodeTraffic | None, link: float | None) -> str:
    """Return what a node sends, to append to a reason; empty if that is not known."""
    if traffic is None:
        return ""
    text = f" In each optimizer step, a node sends {format_bytes(traffic.sent)} to others"
    if traffic.seconds is None:
        return f"{text}."
    return f"{text}, in {format_seconds(traffic.seconds)} at {link:g} Gbit/s."


def estimate_traffic(
    name: str, setup: TrainingSetup, ranks_per_node: int, link: float | None
) -> NodeTraffic | None:
    """Return what a node sends under the row ``name``; None if that is not known.

    Args:
        name: of the row.
        setup: what is trained, and on what.
        ranks_per_node: number of ranks on each node.
        link: Gbit/s that a node sends; None if unknown.
    """
    sent = sent_along(name.partition(" --mesh")[0], setup)
    if sent is None:
        return None
    crossing = crossing_ranks(setup.mesh or {DP: setup.ranks}, ranks_per_node)
    total = sum(crossing.get(name, 0) * nbytes for name, nbytes in sent.items())
    seconds = None if link is None else total / (link * 1e9 / 8)
    text = format_bytes(round(total))
    return NodeTraffic(
        round(total), seconds, text if seconds is None else f"{text}, {format_seconds(seconds)}"
    )


def format_seconds(seconds: float) -> str:
    """Return a duration with about two digits."""
    if 0 < seconds < 1e-4:
        return "less than 0.1 ms"
    value, unit = (seconds, "s") if seconds >= 1 else (seconds * 1000, "ms")
    return f"{value:.0f} {unit}" if value >= 10 else f"{value:.2g} {unit}"


def crossing_ranks(mesh: Mapping[str, int], ranks_per_node: int) -> dict[str, int]:
    """Return how many ranks of a node send to another node, along each dimension of ``mesh``.

    Ranks of a group are ``stride`` apart.  None crosses if the group fits into a node.  Otherwise
    a node has members of ``stride`` groups, or all its ranks are in different ones; of each
    group, the last member on the node sends to the next node.
    """
    found, stride = {}, 1
    for name, size in reversed([*mesh.items()]):
        is_inside = ranks_per_node % (stride * size) == 0
        found[name] = 0 if is_inside or size == 1 else min(stride, ranks_per_node)
        stride *= size
    return found


def sent_along(strategy: str, setup: TrainingSetup) -> dict[str, float] | None:
    """Return the bytes that a rank sends per step along each dimension of the mesh.

    The volumes are those of ``speed_model``, with the factors of a ring; None if unknown.
    """
    size, passes = setup.model_size, setup.accumulate
    parameters, gradients = float(size.parameters), float(size.gradients)
    mesh = setup.mesh or {DP: setup.ranks}
    ring = {name: (ranks - 1) / ranks for name, ranks in mesh.items()}
    dp, gathers = ring.get(DP, 0.0), setup.gather_factor

    def all_reduced(fraction: float = 1.0) -> float:
        return 2 * dp * gradients * fraction * passes

    if strategy in DEEPSPEED_VOLUMES:
        per_pass, per_step = DEEPSPEED_VOLUMES[strategy]
        return {DP: dp * parameters * (per_pass * passes + per_step)}
    if strategy == "ddp":
        return {DP: all_reduced()}
    if strategy == "zero1":
        return {DP: all_reduced() + dp * parameters}
    if strategy in ("zero2", "fsdp", "hsdp", "fsdp --cpu-offload"):
        times = 1 if strategy == "zero2" else 2
        sharded = ring[FSDP] * (times * gathers * parameters + gradients) * passes
        return {FSDP: sharded, DP: all_reduced(1 / mesh[FSDP])}
    return _model_parallel(strategy, setup, ring, all_reduced)


def _model_parallel(
    strategy: str,
    setup: TrainingSetup,
    ring: Mapping[str, float],
    all_reduced: Callable[[float], float],
) -> dict[str, float] | None:
    """Return the same for strategies that also send activations."""
    acts, size = setup.activations, setup.model_size
    if acts is None or acts.all_messages is None or not {"tp", "pp", "sp", "cp"} & {*setup.mesh}:
        return None
    messages, passes = acts.all_messages, setup.accumulate
    all_gradients = 2 * float(size.gradients)
    times = 5 if strategy.endswith("--sequence-parallel") else 4
    sent = {
        "tp": ring.get("tp", 0.0) * times * messages / setup.stages,
        "pp": 4.0 * acts.largest_message,
        "sp": 8 * messages / setup.mesh.get("sp", 1) + ring.get("sp", 0.0) * all_gradients,
        "cp": ring.get("cp", 0.0) * (6 * messages + all_gradients),
    }
    sent = {name: nbytes * passes for name, nbytes in sent.items() if name in setup.mesh}
    shards = ring.get(FSDP, 0.0) * passes
    if strategy == "fsdp+tp":
        sent[FSDP] = shards * (2 * setup.gather_factor + 1) * setup.units.sharded
        return sent | {DP: all_reduced(setup.held / setup.mesh[FSDP])}
    if FSDP in setup.mesh:  # a stage is gathered once, and its gradients scattered
        replicated = setup.held - setup.gathered
        sent[FSDP] = shards * 2 * (setup.gathered + replicated) * size.parameters
        return sent | {DP: all_reduced(setup.kept)}
    return sent | {DP: all_reduced(1.0 if strategy in ("sp", "cp") else setup.held)}
