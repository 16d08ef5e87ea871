"""The scale of losses under fp16 is in checkpoints."""

from __future__ import annotations

import pytest
from interrupted import run_both
from matrix_selection import sampled

EXACT = 1e-6
SMALL_STEPS = "meter = Meter(); opt = torch.optim.SGD(model.parameters(), lr=0.05)\n"

OWN_SCALER = """
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        history.append(scaler.get_scale())
        meter.add(loss.item())
"""
"""It overflows in the first steps, and grows every four steps."""

OVERFLOWS = """
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        before = model[0].weight.detach().clone()
        loss = F.cross_entropy(model(x), y) * 1000
        opt.zero_grad()
        loss.backward()
        opt.step()
        history.append(torch.equal(before, model[0].weight))
        meter.add(loss.item())
"""
"""It overflows until the scale has come down, before the checkpoint."""


@pytest.mark.parametrize("strategy", sampled([("fsdp",), ("ddp",)], 2, "nbmgpu/rank/checkpoints"))
def test_the_scaler_of_a_cell_goes_on(strategy: str) -> None:
    scaler = "scaler = torch.amp.GradScaler('cpu', init_scale=2.0**24, growth_interval=4)\n"
    both = run_both(OWN_SCALER, SMALL_STEPS + scaler, strategy=strategy)
    scales = both.unbroken["history"]
    assert min(scales) < scales[0]
    assert len(set(scales)) > 3
    assert both.resumed["history"] == scales
    assert both.resumed["scaler"].state_dict() == both.unbroken["scaler"].state_dict()
    assert both.difference() <= EXACT


def test_the_scale_of_precision_fp16_goes_on() -> None:
    both = run_both(OVERFLOWS, SMALL_STEPS.replace("0.05", "0.0001"), precision="fp16")
    assert sum(both.unbroken["history"]) == sum(both.unbroken["history"][:10]) > 1
    assert both.resumed["history"] == both.unbroken["history"]
    assert both.difference() == 0
