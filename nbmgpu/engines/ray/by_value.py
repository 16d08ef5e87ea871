"""Modules that Ray sends by value: a node may have no nbmgpu, or another version."""

from __future__ import annotations

import ray

from . import folder_on_node, node_actor


def send_modules_by_value() -> None:
    """Let actors have the classes and functions of these modules as this process has them."""
    for module in (folder_on_node, node_actor):
        ray.cloudpickle.register_pickle_by_value(module)
