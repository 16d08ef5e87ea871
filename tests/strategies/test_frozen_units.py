"""A model that is frozen as a whole while another one trains, and unfrozen again."""

from __future__ import annotations

import pytest
from idiom import compare, idiom

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
    """, shares="made score real fake", curve=False)  # fmt: skip


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "fsdp"])
def test_it_is_trained_as_on_one_device(strategy: str) -> None:
    result = compare(TURNS, 2, strategy=strategy)
    assert not result.wrong, "\n".join(result.wrong)


@pytest.mark.parametrize("strategy", ["deepspeed_stage_1", "deepspeed_stage_3"])
def test_deepspeed_refuses_it(strategy: str) -> None:
    with pytest.raises(StrategyError, match="frozen as a whole"):
        compare(TURNS, 2, strategy=strategy)


WARM = idiom("an optimizer of whole matrices, its rate at 0 in the first step", """
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
        schedule.step()
    """, setup="""
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Tanh(), nn.Linear(16, 4, bias=False))
    opt = torch.optim.Muon(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: min(1.0, step / 4))
    """, curve=False)  # fmt: skip


def test_a_learning_rate_of_0_does_not_hide_the_update() -> None:
    result = compare(WARM, 2, strategy="fsdp")
    assert not result.wrong, "\n".join(result.wrong)
    assert "whole-steps-Muon" in result.notices
