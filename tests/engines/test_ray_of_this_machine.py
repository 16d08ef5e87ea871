"""A run for which Ray starts a cluster on this machine."""

from __future__ import annotations

import psutil
import pytest
import torch
from several_nodes import wait

import nbmgpu

pytestmark = [
    pytest.mark.alone,  # Ray gives a cluster 30 seconds to start: too little beside other tests
    pytest.mark.usefixtures("runs_folder"),
]


def raylets() -> set[int]:
    """Return the pids of Ray's node daemons on this machine."""
    processes = psutil.process_iter(["name"])
    return {process.pid for process in processes if process.info["name"] == "raylet"}


def test_a_cluster_is_started_for_the_run_and_ends_with_it() -> None:
    before = raylets()
    cell = "model.weight.data.fill_(3)"
    names = {"__name__": "__main__", "model": torch.nn.Linear(1, 1)}
    nbmgpu.run(cell, names, engine="ray", gpus=2, cpu=True, engine_option=["address=local"])
    assert names["model"].weight.item() == 3
    wait(lambda: before >= raylets())
