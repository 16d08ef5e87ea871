"""``--precision``: autocast and gradient scaling around a cell that has neither."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from idioms.comparison import run_both
from idioms.differences import difference
from idioms.idiom import TRAIN
from idioms.notebook import notebook
from idioms.sources import ADAM, BLOCKS
from matrix_selection import sampled

import nbmgpu
from nbmgpu.errors import StrategyError


def weights(namespace: dict[str, Any]) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in namespace["model"].parameters()])


def relative_difference(a: dict[str, Any], b: dict[str, Any]) -> float:
    """The largest difference of two notebooks' weights, relative to the largest weight."""
    return difference(weights(a), weights(b)) / weights(b).abs().max().item()


@pytest.mark.parametrize(
    ("precision", "strategy"),
    sampled(itertools.product(("bf16", "fp16"), ("ddp", "zero1", "dp")), 2, "nbmgpu/strategies"),
)
def test_half_precision_is_close_to_one_device(precision: str, strategy: str) -> None:
    start = weights(notebook())
    result = run_both(TRAIN, strategy=strategy, precision=precision)
    full, two, one = result.alone, result.ranks, notebook()
    nbmgpu.run(TRAIN, one, gpus=1, cpu=True, precision=precision)
    assert relative_difference(two, one) <= 1e-2
    assert 0 < relative_difference(two, full) <= 3e-2
    assert (weights(two) - start).abs().max() > 0.05
    assert two["model"].body.weight.dtype == torch.float32
    assert type(two["loss"].item()) is float
    assert two["loss"].dtype == torch.float32


@pytest.mark.parametrize("strategy", ["fsdp", "deepspeed_stage_1", "deepspeed_stage_3"])
def test_half_precision_updates_float32_weights(strategy: str) -> None:
    sharded = {"fsdp_units": ("Block",)} if strategy == "fsdp" else {}
    setup = BLOCKS if strategy == "fsdp" else ADAM
    result = run_both(TRAIN, setup, strategy=strategy, precision="bf16", **sharded)
    assert 0 < result.difference() < 3e-2
    assert result.difference("losses") < 5e-2
    assert {p.dtype for p in result.ranks["model"].parameters()} == {torch.float32}
    assert {s["exp_avg"].dtype for s in result.ranks["opt"].state.values()} == {torch.float32}


def test_a_recomputed_unit_casts_its_inputs_again() -> None:
    called = BLOCKS.replace("block(x, scale=0.5)", "block(x.float(), 0.5)")
    checkpointed = called.replace("block(", "checkpoint(block, ", 1).replace(
        "0.5)", "0.5, use_reentrant=False)"
    )
    checkpointed = "from torch.utils.checkpoint import checkpoint\n" + checkpointed
    kept, recomputed = notebook(called), notebook(checkpointed)
    for namespace in (kept, recomputed):
        nbmgpu.run(
            TRAIN, namespace, gpus=2, cpu=True, strategy="fsdp", precision="bf16",
            fsdp_units=("Block",),
        )  # fmt: skip
    assert relative_difference(recomputed, kept) <= 1e-6


def test_deepspeed_refuses_fp16_where_the_device_has_none() -> None:
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    if CPU_Accelerator().is_fp16_supported():
        pytest.skip("this CPU computes in fp16")
    with pytest.raises(StrategyError, match="bf16"):
        nbmgpu.run(TRAIN, notebook(), gpus=2, cpu=True, strategy="deepspeed", precision="fp16")


AUTOCAST = """
torch.set_num_threads(1)
for x, y in loader:
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)
    loss = F.cross_entropy(out.float(), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def test_one_rank_is_close_to_one_device_under_the_same_autocast() -> None:
    threads = torch.get_num_threads()
    plain = AUTOCAST.replace('torch.autocast("cpu", torch.bfloat16)', "torch.enable_grad()")
    try:
        result = run_both(plain, ranks=1, alone=(AUTOCAST, ""), precision="bf16")
    finally:
        torch.set_num_threads(threads)
    assert relative_difference(result.alone, result.ranks) <= 1e-2


def test_gradients_are_unscaled_in_the_cell() -> None:
    cell = """
norms = []
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    F.cross_entropy(model(x), y).backward()
    norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
    opt.step()
"""
    result = run_both(cell, precision="fp16")
    assert result.ranks["norms"] == pytest.approx(result.alone["norms"], rel=2e-2)
    assert relative_difference(result.ranks, result.alone) <= 1e-2


def test_a_step_with_nan_is_skipped_on_all_ranks() -> None:
    cell = """
moved, finite = [], []
for i, (x, y) in enumerate(loader):
    before = model.head.bias.detach().clone()
    opt.zero_grad()
    (F.cross_entropy(model(x), y) * (1e36 if i in (1, 3) else 1.0)).backward()
    opt.step()
    moved.append(not torch.equal(before, model.head.bias))
"""
    namespace = notebook()
    run = nbmgpu.run(cell, namespace, gpus=2, cpu=True, precision="fp16")
    assert namespace["moved"] == [True, False, True, False, True, True]
    assert run.results[1]["moved"] == namespace["moved"]
    assert weights(namespace).isfinite().all()


SCALER = "scaler = torch.amp.GradScaler('cpu')"
SCALED = """
for x, y in loader:
    opt.zero_grad()
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    scaler.step(opt)
    scaler.update()
"""
CLOSURE = """
for x, y in loader:
    def closure():
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss
    opt.step(closure)
"""


@pytest.mark.parametrize(
    ("cell", "setup", "why"), [(SCALED, SCALER, "GradScaler"), (CLOSURE, "", "closure")]
)
def test_a_scaler_of_the_cell_and_a_closure_are_refused_with_fp16(
    cell: str, setup: str, why: str
) -> None:
    with pytest.raises(StrategyError, match=why):
        nbmgpu.run(cell, notebook(setup), gpus=2, cpu=True, precision="fp16")


def test_a_scaler_of_the_cell_is_allowed_with_bf16() -> None:
    result = run_both(SCALED, SCALER, precision="bf16")
    assert relative_difference(result.ranks, result.alone) <= 3e-2


def test_fp32_disables_the_cells_autocast_and_is_noticed() -> None:
    inside = "    with torch.autocast('cpu', torch.bfloat16):\n            loss = "
    cell = TRAIN.replace("    loss = ", inside)
    result = run_both(cell, alone=(TRAIN, ""), precision="fp32")
    assert "autocast-off" in result.notices
    assert relative_difference(result.ranks, result.alone) <= 1e-6
