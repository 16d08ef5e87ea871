"""Advice for several nodes: meshes, what nodes send, and which strategy a slow link asks for."""

from __future__ import annotations

import itertools
import math
import sys
from typing import Any

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from torch import nn

import nbmgpu
from nbmgpu.advisor.model_advisor import ModelAdvisor
from nbmgpu.advisor.node_traffic import crossing_ranks, parse_link
from nbmgpu.advisor.picker_state import PickerController
from nbmgpu.errors import OptionError
from nbmgpu.frontend import commands
from nbmgpu.options.run_options import RunOptions

SIZE = 24 * (4096 * 4096 + 4096) * 4
"""Bytes of the parameters, and of the gradients."""


@pytest.fixture(scope="module")
def model() -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(24)))


def advise(model: nn.Module, memory: str | None = "80 GB", link: float | None = 25, **more: Any):
    optimizer = torch.optim.Adam(model.parameters())
    options = {"engine": "slurm", "nodes": 2, "gpus": 4} | more
    batch = torch.zeros(64, 4096, device="meta")
    return nbmgpu.advise(model, optimizer, batch, memory=memory, link=link, **options)


@pytest.mark.parametrize(
    ("memory", "link", "line"),
    [
        ("80 GB", 25, "--strategy ddp --gpus 4 --engine slurm --nodes 2"),
        ("9 GB", 25, "--strategy hsdp --gpus 4 --engine slurm --nodes 2 --mesh dp=2,fsdp=4"),
        ("9 GB", None, "--strategy hsdp --gpus 4 --engine slurm --nodes 2 --mesh dp=2,fsdp=4"),
        ("9 GB", 400, "--strategy zero2 --gpus 4 --engine slurm --nodes 2"),
        (
            "4.5 GB", 25,
            "--strategy fsdp+tp+pp --gpus 4 --engine slurm --nodes 2 --mesh pp=2,fsdp=2,tp=2",
        ),
        ("4.5 GB", 400, "--strategy fsdp --gpus 4 --engine slurm --nodes 2"),
    ],
)  # fmt: skip
def test_a_slow_link_keeps_shards_inside_of_nodes(
    model: nn.Module, memory: str, link: float | None, line: str
) -> None:
    advice = advise(model, memory, link)
    assert advice.line == f"%%mgpu {line}"
    assert RunOptions.parse(advice.line.removeprefix("%%mgpu")).command == advice.line
    assert "In each optimizer step, a node sends" in advice.reason
    assert (" Gbit/s." in advice.reason) == (link is not None)


def test_the_time_between_nodes_is_that_of_a_ring(model: nn.Module) -> None:
    traffic = {row.name: row.traffic for row in advise(model, link=25).rows}
    sent = {
        "ddp": 2 * 7 / 8 * SIZE,
        "zero1": 3 * 7 / 8 * SIZE,
        "fsdp": 3 * 7 / 8 * SIZE,
        "hsdp --mesh dp=2,fsdp=4": 4 * 2 * 1 / 2 * SIZE / 4,
        "fsdp+pp --mesh pp=2,fsdp=4": 4 * 4 * (64 / 4) * 4096 * 4,
    }
    for name, nbytes in sent.items():
        assert traffic[name].sent == pytest.approx(nbytes, rel=1e-3), name
        assert traffic[name].seconds == pytest.approx(nbytes * 8 / 25e9, rel=1e-3)
    assert traffic["ddp"].text == "2.6 GiB, 902 ms"
    assert traffic["mp"] is None or advise(model).row("mp").line == ""
    twice = advise(model, link=50).row("ddp").traffic
    assert twice.seconds == pytest.approx(traffic["ddp"].seconds / 2)
    assert advise(model, link=None).row("ddp").traffic.seconds is None
    four = advise(model, link=25, accumulate=4).row("ddp").traffic
    assert four.sent == pytest.approx(4 * traffic["ddp"].sent)


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("sizes", [(8,), (2, 4), (4, 2), (2, 2, 2), (1, 8), (16,), (2, 8)])
def test_ranks_that_send_to_other_nodes_are_those_of_rings(
    nodes: int, sizes: tuple[int, ...]
) -> None:
    world = math.prod(sizes)
    per_node = world // nodes
    places = list(itertools.product(*map(range, sizes)))  # of the ranks, in order
    found = crossing_ranks({str(d): size for d, size in enumerate(sizes)}, per_node)
    for d, size in enumerate(sizes):
        senders = []
        for rank, place in enumerate(places):
            after = (*place[:d], (place[d] + 1) % size, *place[d + 1 :])
            if places.index(after) // per_node != rank // per_node:
                senders.append(rank // per_node)
        most = max((senders.count(node) for node in range(nodes)), default=0)
        assert found[str(d)] == most


def test_rows_of_one_process_are_refused_and_meshes_fit_the_nodes(model: nn.Module) -> None:
    rows = {row.name: row for row in advise(model).rows}
    assert rows["mp"].problem == "is one process on one machine"
    meshes = {name for name in rows if "--mesh" in name}
    assert {"tp --mesh dp=2,tp=4", "fsdp+tp --mesh fsdp=2,tp=4"} <= meshes
    assert "hsdp" not in rows
    text = repr(advise(model))
    assert "between nodes" in text.splitlines()[2]
    assert "6.25 Gbit/s for each rank count as slow" in text
    assert "<th style='text-align:left'>between nodes</th>" in advise(model)._repr_html_()


def test_one_machine_has_no_column_between_nodes(model: nn.Module) -> None:
    advice = nbmgpu.advise(model, gpus=2, memory="80 GB")
    assert "between nodes" not in repr(advice)
    assert all(row.traffic is None for row in advice.rows)


def test_memory_of_nodes_is_told_or_unknown(model: nn.Module) -> None:
    advice = advise(model, memory=None)
    if advice.free is None:  # this machine has no GPU
        assert "tell it, such as --memory 80GB" in repr(advice)
        assert "The free memory is unknown" in advice.reason
    assert advise(model, memory="8 GB").devices == "2 nodes with 4 GPUs each, 7.5 GiB per GPU"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "local"}, "engine='slurm'"),
        ({"link": "fast"}, "Expected Gbit/s that a node sends"),
        ({"link": 0}, "link=25"),
        ({"engine": "local", "nodes": None}, "It goes with several machines"),
    ],
)
def test_what_cannot_be_is_refused(model: nn.Module, options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        advise(model, **options)


def test_speeds_may_have_units() -> None:
    assert [parse_link(text) for text in (25, "25", "25G", "2.5 Gbit/s")] == [25, 25, 25, 2.5]


@pytest.fixture
def shell(model: nn.Module) -> None:
    main = sys.modules["__main__"]
    InteractiveShell.instance().user_ns["model"] = model
    sys.modules["__main__"] = main


def test_the_magic_takes_link_and_memory(shell: None) -> None:
    line = "model --engine slurm --nodes 2 --gpus 4"
    advice = commands.advise(f"{line} --link 25 --memory 80 GB")
    assert advice.row("ddp").traffic.seconds == pytest.approx(0.9, abs=0.01)
    assert advice.ranks == 8
    assert "74.5 GiB per GPU" in advice.devices
    picked = commands.pick(f"{line} --link=25 --memory=8GB").state
    assert picked["controls"] | {"nodes": 2, "link": 25.0, "memory": "8GB"} == picked["controls"]
    assert picked["elsewhere"]
    with pytest.raises(OptionError, match="--link has no value"):
        commands.advise(f"{line} --link")
    with pytest.raises(OptionError, match="80 potatoes"):
        commands.advise(f"{line} --memory 80 potatoes")


def test_controls_of_the_picker_change_nodes_and_link(model: nn.Module) -> None:
    options = RunOptions.parse("--engine slurm --nodes 2 --gpus 4")
    controller = PickerController(ModelAdvisor(model, None, (64, 4096)), "model", options)
    advice = controller.state().advice
    assert advice is not None
    assert advice.line == "%%mgpu --strategy ddp --gpus 4 --engine slurm --nodes 2"
    changed = controller.choose({"nodes": 4, "link": 100.0, "memory": "9 GB"}).advice
    assert changed is not None
    assert changed.line.endswith("--engine slurm --nodes 4 --mesh dp=4,fsdp=4")
    assert changed.row(changed.recommended).traffic.seconds > 0
    assert "9 potatoes" in controller.choose({"memory": "9 potatoes"}).problem
