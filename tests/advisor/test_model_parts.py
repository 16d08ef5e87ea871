"""What a rank has of a model under tp, pp, sp and cp, as the advisor plans it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import nbmgpu
from nbmgpu.advisor.fake_step import run_divided
from nbmgpu.advisor.model_advisor import ModelAdvisor
from nbmgpu.advisor.model_parts import WHOLE, parts_of
from nbmgpu.advisor.request import AdviceRequest
from nbmgpu.options.run_options import RunOptions
from nbmgpu.strategies import profile_of
from nbmgpu.strategies.mesh_sizes import mesh_sizes
from nbmgpu.strategies.strategy_options import StrategyOptions

OPTIONS = StrategyOptions()

TRAIN = """
model, optimizer = make()
for x, y in [(torch.zeros(4, 6).long(), torch.zeros(4, 6).long())] * 2:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
    optimizer.step()
"""


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))

    def forward(self, x):
        x = self.norm(x)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.mlp(x)


class Decoder(nn.Module):
    def __init__(self, layers=6):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(16, 50)

    def forward(self, x):
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def made():
    model = Decoder()
    return model, torch.optim.Adam(model.parameters())


def parts(model, strategy, ranks, **options):
    mesh = mesh_sizes(profile_of(strategy), ranks, OPTIONS)
    return parts_of(strategy, model, mesh, StrategyOptions(**options))


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [("tp", 2), ("tp", 3), ("pp", 2), ("pp", 3), ("tp+pp", 4), ("fsdp+pp", 4), ("fsdp+tp+pp", 8)],
)
def test_ranks_hold_what_the_advisor_plans(strategy, ranks):
    names = {"torch": torch, "nn": nn, "make": made}
    run = nbmgpu.run(TRAIN, names, gpus=ranks, cpu=True, strategy=strategy, pull=())
    model = Decoder()
    total = sum(p.nbytes for p in model.parameters())
    planned = parts(model, strategy, ranks).kept_fraction(model) * total
    assert max(run.shards.total.nbytes) == pytest.approx(planned, rel=0.03)


def test_plans_do_not_need_the_values_of_parameters():
    model = Decoder()
    with torch.device("meta"):
        empty = Decoder()
    for strategy in ("tp", "pp"):
        fractions = [parts(m, strategy, 2).held_fraction(m) for m in (model, empty)]
        assert fractions[0] == fractions[1]
        assert 0.5 <= fractions[0] < 0.8
    assert parts(empty, "sp", 2).held_fraction(empty) == 1.0


def test_the_plan_of_the_user_is_followed():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    planned = parts(model, "tp", 2, tp_plan=("0=colwise", "1=replicate"))
    assert set(planned.held) == set(model[0].parameters())


def test_a_model_without_layers_is_not_divided():
    assert parts(nn.Linear(8, 8), "pp", 2) is WHOLE
    row = ModelAdvisor(nn.Linear(8, 8), batch=torch.zeros(8, 8)).advise(
        AdviceRequest(gpus=2, memory="8 GB")
    ).row("pp")  # fmt: skip
    assert row.line == ""
    assert "no sequence of layers" in row.problem


def test_activations_inside_of_layers_are_divided():
    model, batch = Decoder(8), torch.zeros(2, 512, dtype=torch.long)
    names = ("tp", "pp", "sp", "cp", "tp+pp")
    wanted = [WHOLE, *(parts(model, name, 4) for name in names)]
    whole, *divided = (step.saved for step in run_divided(model, batch, 2, wanted))
    tp, pp, sp, cp, tp_pp = (saved / whole for saved in divided)
    assert 0.25 < sp < cp < tp < 1.0  # cp has the keys of all ranks; tp splits the MLP only
    assert 0.25 < pp < 0.6  # embedding and head are on all ranks
    assert pp < tp_pp < tp  # two stages, with parts of the MLP


def test_a_step_for_one_rank_is_not_changed_by_others():
    model, batch = Decoder(), torch.zeros(2, 64, dtype=torch.long)
    alone = run_divided(model, batch, 2, [WHOLE])[0]
    beside = run_divided(model, batch, 2, [parts(model, "tp", 2), WHOLE])[1]
    assert alone == beside
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_checkpointed_layers_run_on_slices_again():
    model, batch = Decoder(4), torch.zeros(1, 2048, dtype=torch.long)
    wanted = [WHOLE, parts(model, "sp", 4)]
    whole, slices = run_divided(model, batch, 1, wanted, checkpointing=True)
    assert slices.peak < 0.6 * whole.peak


def test_eager_attention_runs_on_whole_sequences():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        vocab_size=40, attn_implementation="eager",
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    assert parts(model, "sp", 2) is WHOLE
    other = copy.deepcopy(model)
    other.config._attn_implementation = "sdpa"
    assert parts(other, "sp", 2).regions


def test_rows_follow_the_mesh_of_the_line():
    model = Decoder()
    advisor = ModelAdvisor(model, batch=torch.zeros(16, 64, dtype=torch.long))

    def row(name, *mesh):
        options = RunOptions.of(strategy="tp", gpus=4, cpu=True, mesh=mesh)
        return advisor.advise(AdviceRequest.from_options(options)).row(name)

    whole, replicas = row("tp"), row("tp", "dp=2", "tp=2")
    assert replicas.line.endswith("--mesh dp=2,tp=2")
    assert replicas.parts[0].low > whole.parts[0].low
    assert row("tp --mesh dp=2,tp=2").parts == replicas.parts
    refused = row("fsdp", "dp=2", "tp=2")
    assert (refused.line, refused.problem) == ("", "the mesh of this line is one of fsdp+tp")
