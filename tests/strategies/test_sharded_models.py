"""What holds under every strategy that shards parameters: fsdp, zero2 and DeepSpeed's stages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from idioms.comparison import assert_equal
from idioms.differences import difference
from idioms.idiom import TRAIN, idiom
from idioms.notebook import execute, notebook
from idioms.sources import ADAM, BLOCKS, INFERENCE, before_step
from torch import nn

import nbmgpu
from nbmgpu.errors import NbmgpuError

SHARDED = pytest.mark.parametrize("strategy", ["fsdp", "zero2", "tp", "deepspeed_stage_3"])


@pytest.mark.parametrize(
    "strategy", ["fsdp", "zero2", "tp", "deepspeed_stage_2", "deepspeed_stage_3"]
)
def test_evaluation_in_inference_mode_between_epochs(strategy: str) -> None:
    cell = INFERENCE + "norms = [p.norm().item() for p in model.parameters()]\n"
    cell += "largest = max(p.grad.abs().max().item() for p in model.parameters())\n"
    assert_equal(idiom("inference", cell, setup=BLOCKS, curve=False), notices="", strategy=strategy)


@pytest.mark.parametrize("strategy", ["fsdp", "zero2", "deepspeed_stage_3"])  # tp: equal losses
@pytest.mark.parametrize("leave", ["continue", "break"])
def test_a_rank_that_skips_a_backward_pass_ends_the_run_at_once(strategy: str, leave: str) -> None:
    # Only rank 0 has the first sample in its shard.
    skip = f"if (x == X[0]).all(1).any().item(): {leave}\n    loss.backward()"
    cell = before_step("").replace("loss.backward()", skip)
    options = {"strategy": strategy, "exact": "never", "timeout": 100}
    with pytest.raises(NbmgpuError, match="different numbers of steps"):
        nbmgpu.run(cell, notebook(), gpus=2, cpu=True, **options)


FROM_BEFORE = "before = model(X[:8]).pow(2).mean()\n" + before_step(
    "if not losses: before.backward()"
)


@pytest.mark.parametrize("strategy", ["fsdp", "zero2", "tp"])
def test_a_graph_from_before_the_model_was_sharded_adds_its_gradients(strategy: str) -> None:
    setup = "model = nn.Linear(8, 4)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    graph = idiom("a graph from before", FROM_BEFORE, setup=setup)
    assert_equal(graph, strategy=strategy, exact="never")


ALIASES = f"""
from nbmgpu.strategies.sharding import tensor_shard
plain, gathered = tensor_shard.all_gather, []
tensor_shard.all_gather = lambda *parts: (gathered.append(parts[0].shape), plain(*parts))
before = model.state_dict()
{before_step("")}
tensor_shard.all_gather = plain
"""


def test_aliases_of_parameters_are_not_gathered_while_the_model_is_sharded() -> None:
    # Ranks find them in different orders, and would gather different ones together.
    namespace = notebook()
    nbmgpu.run(ALIASES, namespace, gpus=2, cpu=True, strategy="fsdp")
    assert namespace["gathered"] == []


SAVING = """
torch.save(model.state_dict(), r"{0}/weights.pt")
torch.save(opt.state_dict(), r"{0}/states.pt")
sizes = {{k: v.shape for k, v in model.state_dict().items()}}
"""


@SHARDED
def test_checkpoints_written_in_the_cell_load_into_a_plain_model(strategy, tmp_path) -> None:
    namespace, alone = notebook(BLOCKS), notebook(BLOCKS)
    units = {"fsdp_units": ("Block",)} if strategy in ("fsdp", "zero2") else {}
    cell = TRAIN + SAVING.format(tmp_path)
    nbmgpu.run(cell, namespace, gpus=2, cpu=True, strategy=strategy, **units)
    model, weights = namespace["model"], torch.load(tmp_path / "weights.pt")
    assert {type(w) for w in weights.values()} == {torch.Tensor}
    for name, value in model.state_dict().items():
        assert torch.equal(weights[name], value)
        assert namespace["sizes"][name] == value.shape
    execute(TRAIN, alone)
    plain = notebook(BLOCKS)["model"]
    plain.load_state_dict(weights)
    assert difference(alone["model"], plain) < 1e-5
    states = torch.load(tmp_path / "states.pt")["state"]
    ours = namespace["opt"].state_dict()["state"]
    assert all(torch.equal(states[i][k], v) for i, s in ours.items() for k, v in s.items())


@pytest.mark.parametrize("strategy", ["fsdp", "zero2"])
def test_a_part_of_a_model_is_saved_as_a_plain_module(strategy: str, tmp_path: Path) -> None:
    namespace = notebook(BLOCKS)
    cell = f'{TRAIN}\ntorch.save(nn.Sequential(model.head, nn.ReLU()), r"{tmp_path}/part.pt")\n'
    nbmgpu.run(cell, namespace, gpus=2, cpu=True, strategy=strategy)
    part = torch.load(tmp_path / "part.pt", weights_only=False)
    assert type(part[0].weight) is nn.Parameter
    assert torch.equal(part[0].weight, namespace["model"].head.weight)


TRAINED_BEFORE = BLOCKS + before_step("")


@SHARDED
def test_after_a_failure_parameters_and_states_are_those_from_before(strategy: str) -> None:
    namespace = notebook(TRAINED_BEFORE)
    model, optimizer = namespace["model"], namespace["opt"]
    before = {k: v.clone() for k, v in model.state_dict().items()}
    moments = [s["exp_avg"].clone() for s in optimizer.state.values()]
    with pytest.raises(ZeroDivisionError):
        nbmgpu.run(TRAIN + "1 / 0", namespace, gpus=2, cpu=True, strategy=strategy)
    assert namespace["model"] is model
    assert {type(p) for p in model.parameters()} == {nn.Parameter}
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    if "deepspeed" not in strategy:  # whose engine has taken the states
        for state, moment in zip(optimizer.state.values(), moments, strict=True):
            assert torch.equal(state["exp_avg"], moment)
    family = "deepspeed" if "deepspeed" in strategy else "sharded"
    assert f"{family}-states-lost" in nbmgpu.last_run.view.notices
    execute(TRAIN, namespace)


@pytest.mark.parametrize("strategy", ["fsdp", "zero2"])
def test_running_statistics_are_equal_on_all_ranks(strategy: str) -> None:
    setup = "model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))\n" + ADAM
    cell = TRAIN + "with torch.no_grad(): out = [model.eval()(X).sum().item()]\n"
    run = nbmgpu.run(cell, notebook(setup), gpus=2, cpu=True, strategy=strategy)
    assert run.results[0]["out"] == run.results[1]["out"]
