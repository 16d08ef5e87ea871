"""A model's parameters by layer, as a user names them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nbmgpu.rank.reporting.layers import NO_MODULE, layers, layers_of
from nbmgpu.strategies.base import Unit


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(10, 4)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(4)


class LanguageModel(nn.Module):
    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.model = Decoder()
        self.lm_head = nn.Linear(4, 10, bias=False)
        if tied:
            self.lm_head.weight = self.model.embed_tokens.weight


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3)
        self.norm = nn.LayerNorm(4)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.encoder, self.decoder = Encoder(), Encoder()


class Wrapper(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.loss = nn.MSELoss()


REPEATED = ["model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm", "lm_head"]


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (LanguageModel(), REPEATED),
        (LanguageModel(tied=True), REPEATED[:-1]),
        (Wrapper(LanguageModel()), [f"inner.{name}" for name in REPEATED]),
        (Pair(), ["scale", "encoder", "decoder"]),
        (Wrapper(Encoder()), ["inner.conv", "inner.norm"]),
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), ["0", "2"]),
        (nn.Sequential(nn.Linear(4, 4), nn.Sequential(Block(), Block())), ["0", "1.0", "1.1"]),
        (nn.Linear(4, 4), ["Linear"]),
        (nn.ReLU(), []),
    ],
)
def test_names(model: nn.Module, names: list[str]) -> None:
    found = layers(model)
    assert list(found) == names
    held = [id(p) for parameters in found.values() for p in parameters]
    assert sorted(held) == sorted(id(p) for p in model.parameters())  # each one once


def test_several_models_and_parameters_in_no_module() -> None:
    bare = nn.Parameter(torch.ones(3))
    shared = nn.Linear(4, 4)
    first, second = nn.Sequential(shared), nn.Sequential(shared, nn.Linear(4, 2))
    units = [
        Unit([LanguageModel()], []),
        Unit([first, second], [torch.optim.SGD([*second.parameters(), bare])]),
    ]
    names = [f"LanguageModel: {name}" for name in REPEATED]
    found = layers_of(units)
    assert list(found) == [*names, "Sequential.1: 0", "Sequential.2: 1", NO_MODULE]
    assert found[NO_MODULE] == [bare]
