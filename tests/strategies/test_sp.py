"""sp and cp: layers on slices of the sequence, with the numbers of one device."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from idioms.comparison import compare
from idioms.idiom import Idiom, idiom
from idioms.notebook import notebook
from idioms.sequences import CELLS, GPT, OPT, TRAIN, gpt
from matrix_selection import sampled

import nbmgpu
from nbmgpu.errors import OptionError
from nbmgpu.options.run_options import RunOptions

EXERCISED = (
    "nbmgpu/strategies/sp",
    "nbmgpu/strategies/sequence",
    "nbmgpu/strategies/sharding/collectives.py",
)


def tolerant(cell: Idiom) -> Idiom:
    """Return the cell with the rounding of sums that are computed in parts."""
    return dataclasses.replace(cell, rtol=5e-5, atol=5e-6, curve=False)


@pytest.mark.parametrize(
    ("strategy", "ranks", "cell"),
    sampled(itertools.product(("sp", "cp"), (2, 4), CELLS), 11, *EXERCISED),
)
def test_cells(strategy: str, ranks: int, cell: Idiom) -> None:
    result = compare(tolerant(cell), ranks, strategy=strategy)
    result.assert_equal()
    assert result.notices - {"not-sharded"} == cell.notices


@pytest.mark.parametrize("strategy", ["sp", "cp"])
def test_layers_are_recomputed_on_slices(strategy: str) -> None:
    cell = idiom("--checkpointing", TRAIN, setup=gpt(more="p=0.2"))
    result = compare(tolerant(cell), 2, strategy=strategy, checkpointing=True)
    result.assert_equal()
    assert not result.notices


BATCH_LIMITS = {
    "a limit of all positions": "local-branch",
    "a limit of all positions that is not read": "cross-sample",
    "a loop that doubles numbers": "local-branch",
}
"""Cells whose limit is also one of all samples, and the notice for it."""

SAME_ALONG_DP = [c for c in CELLS if not {"dropout", "stochastic", "hook"} & {*c.name.split()}]


@pytest.mark.parametrize("cell", sampled(((c,) for c in SAME_ALONG_DP), 23, *EXERCISED))
def test_replicas(cell: Idiom) -> None:
    if cell.name in ("lengths that change", "logits that are kept"):
        pytest.skip("the cell reads what a rank made of its shard")
    if cell.name == "as many samples as positions":
        cell = dataclasses.replace(cell, rank_local=frozenset({"b", "logits"}))
    cell = dataclasses.replace(cell, rank_local=cell.rank_local | {"b", "logits"})
    result = compare(tolerant(cell), 4, strategy="sp", mesh="dp=2,sp=2")
    if cell.name in BATCH_LIMITS:
        assert BATCH_LIMITS[cell.name] in result.notices
    elif "random-step" not in result.notices:
        result.assert_equal()


MEMORY = """
kept = []
def pack(tensor):
    kept.append((tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()))
    return tensor
for step, (b,) in enumerate(loader):
    kept.clear()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logits = model(b)
        loss = F.cross_entropy(logits.view(-1, 40), b.view(-1))
    held = sum(dict(kept).values())
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize(("strategy", "of_one"), [("sp", (0.6, 0.35)), ("cp", (0.8, 0.6))])
def test_each_rank_keeps_its_part_of_the_activations(
    strategy: str, of_one: tuple[float, float]
) -> None:
    setup = GPT.replace("nn.Embedding(16, width)", "nn.Embedding(512, width)")
    setup += "ids = torch.randint(0, 40, (8, 512))\n"
    setup += "loader = DataLoader(TensorDataset(ids), batch_size=2)\n"
    setup += "model = GPT(width=32, layers=4)\n" + OPT
    held = {}
    for ranks in (1, 2, 4):
        names = notebook(setup)
        run = nbmgpu.run(MEMORY, names, gpus=ranks, cpu=True, strategy=strategy)
        held[ranks] = max(each["held"] for each in run.results.values())
    assert held[2] < of_one[0] * held[1]
    assert held[4] < of_one[1] * held[1]


def test_a_cell_without_sequences_is_told_so() -> None:
    run = nbmgpu.run("for x, y in loader:\n    opt.zero_grad()\n"
                     "    F.cross_entropy(model(x), y).backward()\n    opt.step()",
                     notebook(), gpus=2, cpu=True, strategy="sp")  # fmt: skip
    assert "%%mgpu --strategy ddp" in run.view.notices["no-sequence"].text


def test_nothing_is_left_on_the_model() -> None:
    names = notebook(gpt())
    attributes = [dict(vars(m)).keys() for m in names["model"].modules()]
    attention = names["F"].scaled_dot_product_attention
    nbmgpu.run(TRAIN, names, gpus=2, cpu=True, strategy="sp")
    assert [dict(vars(m)).keys() for m in names["model"].modules()] == attributes
    assert names["F"].scaled_dot_product_attention is attention
    assert names["model"].head.weight is names["model"].tokens.weight


@pytest.mark.parametrize(
    ("line", "strategy"),
    [
        ("--strategy ulysses", "sp"),
        ("--strategy context_parallel", "cp"),
        ("--mesh dp=2,sp_size=2", "sp"),
        ("--mesh cp_size=2", "cp"),
        ("--strategy sp --mesh dp=2,sp=2", "sp"),
    ],
)
def test_names_of_other_tools(line: str, strategy: str) -> None:
    assert RunOptions.parse(line).strategy == strategy


def test_a_dimension_of_another_strategy() -> None:
    with pytest.raises(OptionError, match=r"no dimension 'tp'.*\n?.*\n?.*--mesh dp=2,sp=2"):
        nbmgpu.run("1", {}, strategy="sp", gpus=4, mesh="tp=2,sp=2")
