"""tp --sequence-parallel: between split layers, each rank has a slice of the sequence."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from idioms.comparison import compare
from idioms.differences import difference
from idioms.idiom import Idiom, idiom
from idioms.notebook import execute, notebook
from idioms.sequences import (
    CELLS,
    GROUPED,
    HUGGING_FACE,
    LLAMA,
    OPT,
    TEXTS,
    TRAIN,
    pretrained,
)
from matrix_selection import sampled
from torch import nn

import nbmgpu
from nbmgpu.errors import OptionError
from nbmgpu.options.run_options import RunOptions

EXERCISED = (
    "nbmgpu/strategies/sequence",
    "nbmgpu/strategies/tp",
    "nbmgpu/strategies/sharding/collectives.py",
)

UNEVEN = TEXTS.replace("8)", "11)")
"""Slices of 6 and 5, or 3, 3, 3 and 2 positions."""

OWN = """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))
    def forward(self, x, rotation):
        batch, length, _ = x.shape
        qkv = (f(x).view(batch, length, -1, 4) for f in (self.q, self.k, self.v))
        q, k, v = (y.transpose(1, 2) for y in qkv)
        y = F.scaled_dot_product_attention(q * rotation, k * rotation, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, -1))
class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.dropout = nn.Dropout(P)
    def forward(self, x):
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention, self.mlp, self.calls = nn.LayerNorm(16), Attention(), MLP(), 0
        self.condition = nn.Linear(16, 16)
    def forward(self, x, rotation):
        x = x + F.dropout(self.attention(self.norm(x), rotation), P, self.training)
        return self.mlp(x)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(40, 16)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 40)
    def forward(self, ids):
        x = self.tokens(ids)
        rotation = torch.linspace(-1, 1, ids.shape[1] * 4).view(1, ids.shape[1], 4)
        for layer in self.layers:
            x = layer(x, rotation)
        return self.head(self.norm(x))
model = Model()
"""
"""Attention computes with the shape of its input; a residual addition is inside of the MLP."""


def own(p: float = 0.0, **replaced: str) -> str:
    """Return the source of a hand-written transformer, with dropout ``p``."""
    return UNEVEN + OWN.replace("P)", f"{p})").replace("P,", f"{p},") + OPT


def changed(line: str, **more: float) -> str:
    """Return the hand-written transformer whose layers end with another line."""
    return own(**more).replace("        return self.mlp(x)\n", f"        {line}\n")


EVALUATION = """
model.eval()
with torch.no_grad():
    losses += [F.cross_entropy(model(b).flatten(0, 1), b.flatten()).item() for (b,) in loader]
"""

MORE = [
    idiom("a transformer by hand", TRAIN, setup=own()),
    idiom("a transformer by hand with dropout", TRAIN + EVALUATION, setup=own(0.2), curve=False),
    idiom("checkpoints by hand", TRAIN, setup=own(0.2).replace("layer(x, rotation)",
        "torch.utils.checkpoint.checkpoint(layer, x, rotation, use_reentrant=False)")
        + "import torch.utils.checkpoint\n"),
    idiom("a frozen layer", TRAIN,
        setup=own() + "model.layers[0].attention.q.requires_grad_(False)\n"),
    idiom("gradients of gradients", TRAIN.replace("loss.backward()",
        "grads = torch.autograd.grad(loss, list(model.parameters())[:-2], create_graph=True, "
        "allow_unused=True)\n"
        "        (loss + sum(g.square().sum() for g in grads if g is not None)).backward()"),
        setup=own().replace("F.scaled_dot_product_attention(q * rotation, k * rotation, v, "
        "is_causal=True)", "v"), rank_local="grads"),
    idiom("a weight outside of its layer", TRAIN,
        setup=changed("return self.mlp(x) + F.linear(x, self.condition.weight)")),
    idiom("calls that are counted", TRAIN + "calls = [layer.calls for layer in model.layers]\n",
        setup=changed("self.calls += 1; return self.mlp(x)"),
        notices="whole-sequences-Layer no-sequence"),
    idiom("a linear layer without positions", TRAIN,
        setup=changed("return self.mlp(x) + self.condition(rotation.new_ones(1, 16))"),
        notices="whole-sequences-Layer no-sequence"),
    idiom("an uneven Llama", HUGGING_FACE, setup=pretrained(
        "LlamaForCausalLM", "LlamaConfig", GROUPED) + UNEVEN),
    idiom("an uneven GPT-2 with padding", HUGGING_FACE.replace(
        "labels=b", "labels=b, attention_mask=(b > 8).long()"), setup=pretrained(
        "GPT2LMHeadModel", "GPT2Config", "n_embd=16, n_layer=2, n_head=4") + UNEVEN),
    idiom("eager attention", HUGGING_FACE, setup=pretrained(
        "LlamaForCausalLM", "LlamaConfig", LLAMA + ", attn_implementation='eager'")
        + TEXTS.replace("14", "16")),
    idiom("Qwen3", HUGGING_FACE, setup=pretrained(
        "Qwen3ForCausalLM", "Qwen3Config", GROUPED + ", head_dim=4")),
]  # fmt: skip
"""Cells with the notices that they must be given under ``tp --sequence-parallel``."""


def tolerant(cell: Idiom) -> Idiom:
    """Return the cell with the rounding of sums that are computed in parts."""
    return dataclasses.replace(cell, rtol=5e-5, atol=5e-6, curve=False)


@pytest.mark.parametrize(
    ("ranks", "cell"), sampled(itertools.product((2, 4), [*MORE, *CELLS]), 13, *EXERCISED)
)
def test_cells(ranks: int, cell: Idiom) -> None:
    result = compare(tolerant(cell), ranks, strategy="tp", sequence_parallel=True)
    result.assert_equal()
    assert result.notices - {"not-sharded"} == cell.notices


SAME_ALONG_DP = [
    c for c in MORE if {"dropout", "checkpoints", "GPT-2", "gradients"}.isdisjoint(c.name.split())
]


@pytest.mark.parametrize("cell", sampled(((c,) for c in SAME_ALONG_DP), 23, *EXERCISED))
def test_replicas(cell: Idiom) -> None:
    cell = dataclasses.replace(cell, rank_local=cell.rank_local | {"b", "logits"})
    mesh = "dp=2,tp=2"
    result = compare(tolerant(cell), 4, strategy="tp", sequence_parallel=True, mesh=mesh)
    result.assert_equal()


@pytest.mark.parametrize(
    "options",
    [{"checkpointing": True}, {"clip": 0.1}, {"tp_plan": "up=colwise,down=rowwise,head=colwise"}],
    ids=str,
)
def test_with_other_options(options: dict[str, object]) -> None:
    cell = idiom("options", TRAIN + EVALUATION, setup=own(0.1))
    if "clip" in options:
        cell = dataclasses.replace(cell, cell=cell.cell.replace(", 1.0)", ", 0.1)"))
    result = compare(tolerant(cell), 2, strategy="tp", sequence_parallel=True, **options)
    result.assert_equal()
    assert not result.notices


def test_accumulated_batches() -> None:
    large = own().replace("batch_size=4", "batch_size=8")
    alone, found = notebook(large), notebook(own())
    execute(TRAIN, alone)
    options = {"strategy": "tp", "sequence_parallel": True, "accumulate": 2}
    nbmgpu.run(TRAIN, found, gpus=2, cpu=True, **options)
    assert difference(alone["model"], found["model"]) < 1e-5


def test_half_precision() -> None:
    runs = []
    for more in ({}, {"sequence_parallel": True}):
        names = notebook(own())
        nbmgpu.run(TRAIN, names, gpus=2, cpu=True, strategy="tp", precision="bf16", **more)
        runs.append(names["losses"])
    assert runs[0] == pytest.approx(runs[1], rel=2e-2)


def test_nothing_is_left_on_the_model() -> None:
    names = notebook(own(0.1))
    attributes = [{**vars(m)}.keys() for m in names["model"].modules()]
    functions = names["F"].scaled_dot_product_attention, names["F"].dropout
    nbmgpu.run(TRAIN, names, gpus=2, cpu=True, strategy="tp", sequence_parallel=True)
    assert [{**vars(m)}.keys() for m in names["model"].modules()] == attributes
    assert functions == (names["F"].scaled_dot_product_attention, names["F"].dropout)
    assert all(type(p) is nn.Parameter for p in names["model"].parameters())


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        ("ddp", r"only tp has split layers.*\n?.*\n?.*--strategy tp --sequence-parallel"),
        ("fsdp+tp", r"hooks take whole outputs.*\n?.*\n?.*--strategy tp --sequence-parallel"),
        ("sp", r"--sequence-parallel.*\n?.*\n?.*--strategy tp --sequence-parallel"),
    ],
)
def test_other_strategies_refuse_it(strategy: str, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        RunOptions.parse(f"--strategy {strategy} --sequence-parallel")


def test_a_dry_run_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    options = RunOptions.parse("--strategy tp --sequence-parallel --cpu --dry-run")
    nbmgpu.run("1", {}, **vars(options))
    assert "sequence-parallel" in capsys.readouterr().out
