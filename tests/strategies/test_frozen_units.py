"""Models and layers that are frozen and unfrozen while the cell trains."""

from __future__ import annotations

import pytest
from idioms.comparison import assert_equal
from idioms.idiom import TRAIN, idiom

from nbmgpu.errors import StrategyError

TURNS = idiom("a critic that is frozen while the other one learns", """
    for x, y in loader:
        for p in critic.parameters():
            p.requires_grad_(False)
        made = maker(x)
        score = critic(made)
        opt_maker.zero_grad()
        F.binary_cross_entropy_with_logits(score, torch.ones_like(score)).backward()
        opt_maker.step()
        for p in critic.parameters():
            p.requires_grad_(True)
        real, fake = critic(x), critic(made.detach())
        loss = F.softplus(-real).mean() + F.softplus(fake).mean()
        opt_critic.zero_grad()
        loss.backward()
        opt_critic.step()
        losses.append(loss.item())
    """, setup="""
    maker, critic = nn.Linear(8, 8), nn.Linear(8, 1)
    opt_maker = torch.optim.SGD(maker.parameters(), 0.1)
    opt_critic = torch.optim.SGD(critic.parameters(), 0.1)
    """, rank_local="made score real fake", curve=False)  # fmt: skip


LAYER = idiom(
    "a layer that is frozen after an epoch",
    TRAIN.replace("    for x", "    model.body.requires_grad_(epoch == 0)\n    for x"),
    setup="opt = torch.optim.Adam(model.parameters(), lr=1e-2)",
)


@pytest.mark.parametrize(
    "strategy", ["zero1", "fsdp", "tp", "deepspeed_stage_1", "deepspeed_stage_3"]
)
def test_a_frozen_layer(strategy: str) -> None:
    assert_equal(LAYER, strategy=strategy, notices="")


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "fsdp", "tp"])
def test_it_trains_as_on_one_device(strategy: str) -> None:
    assert_equal(TURNS, strategy=strategy)


@pytest.mark.parametrize("strategy", ["deepspeed_stage_1", "deepspeed_stage_3"])
def test_deepspeed_refuses_it(strategy: str) -> None:
    with pytest.raises(StrategyError, match="frozen as a whole"):
        assert_equal(TURNS, strategy=strategy)
