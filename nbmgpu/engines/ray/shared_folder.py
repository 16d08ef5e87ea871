"""Which nodes of a Ray cluster see the notebook's files, asked before a run is submitted."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from . import node_actor
from .by_value import send_modules_by_value

TIMEOUT = 30.0
"""Seconds in which a node can answer; one that is full or slow counts as one that sees them."""


def blind_nodes(nodes: list[dict[str, Any]], folder: str) -> tuple[str, ...]:
    """Return the names of the nodes that do not see ``folder``, or this process's own folder.

    Args:
        nodes: as ``ray.nodes()`` describes them.
        folder: where runs are; it is created if need be.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    send_modules_by_value()
    sees = ray.remote(node_actor.sees)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".seen-by-") as file:
        names = {}
        for node in nodes:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": there}
            answer = sees.options(**options).remote(file.name, os.getcwd())
            names[answer] = node["NodeManagerHostname"]
        answered, left = ray.wait([*names], num_returns=len(names), timeout=TIMEOUT)
        for each in left:
            ray.cancel(each)
        return tuple(names[each] for each in answered if not _result(each))


def _result(answer: Any) -> bool:
    try:
        return bool(ray.get(answer))
    except ray.exceptions.RayError:  # the node is lost: whether it sees the folder is not known
        return True
