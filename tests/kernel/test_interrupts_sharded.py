"""An interrupt during training with a sharded model writes the full model back."""

from __future__ import annotations

import pytest
from kernels import Notebook

TRAIN = """
for epoch in range(100_000):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print("epoch", epoch)
"""


@pytest.mark.parametrize("strategy", ["fsdp", "zero1", "deepspeed_stage_2"])
def test_an_interrupt_writes_the_full_model_back(notebook: Notebook, strategy: str) -> None:
    notebook.run("optimizer = torch.optim.Adam(model.parameters(), lr=0.01)")
    notebook.run("before = model.weight.detach().clone(); epoch = loss = None")
    cell = notebook.send(f"%%mgpu --gpus 2 --strategy {strategy}\n{TRAIN}").until("epoch 2")
    at = notebook.interrupt()
    notebook.wait_for_ranks_to_exit(10)
    cell.fails("KeyboardInterrupt", 5)
    assert cell.replied - at < 3
    assert notebook.value("epoch") >= 2
    assert not notebook.value("torch.equal(before, model.weight)")
    assert notebook.value("type(model.weight) is nn.Parameter")
    states = "[tuple(optimizer.state[p]['exp_avg'].shape) for p in model.parameters()]"
    assert notebook.value(states) == [(2, 4), (2,)]
    steps = "[int(optimizer.state[p]['step']) for p in model.parameters()]"
    assert len(set(notebook.value(steps))) == 1
