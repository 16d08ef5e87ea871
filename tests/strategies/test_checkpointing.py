"""``--checkpointing``: blocks are recomputed in the backward pass, and the numbers stay."""

from __future__ import annotations

import itertools

import pytest
from idioms.comparison import assert_equal, compare_whole_batches
from idioms.idiom import TRAIN, Idiom, idiom
from idioms.notebook import notebook
from idioms.sources import BATCH_NORM, BERT, BLOCKS, TRAIN_BERT
from matrix_selection import sampled
from torch import nn

import nbmgpu
from nbmgpu.strategies.repeated_blocks import blocks

COUNT = """
calls = 0
def count(module, args, output):
    global calls
    calls += 1
model.blocks[1].up.register_forward_hook(count)
"""

RECOMPUTED = [
    idiom("blocks in a ModuleList", setup=BLOCKS),
    idiom("BERT", TRAIN_BERT, setup=BERT),
    idiom("an encoder", setup="""
        model = nn.Sequential(nn.Unflatten(1, (2, 4)), nn.TransformerEncoder(
            nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), 2), nn.Flatten(),
            nn.Linear(8, 4))
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        """),
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "strategy"),
    sampled(itertools.product(RECOMPUTED, ("ddp", "zero1", "tp", "dp")), 2, "nbmgpu/strategies"),
)
def test_checkpointing_keeps_the_numbers(case: Idiom, strategy: str) -> None:
    notices = "data-parallel" if strategy == "dp" else ""
    assert_equal(case, notices=notices, strategy=strategy, checkpointing=True)


@pytest.mark.parametrize(("option", "calls"), [(False, 12), (True, 24)])
def test_blocks_are_recomputed(option: bool, calls: int) -> None:
    namespace = notebook(BLOCKS)
    nbmgpu.run(COUNT + TRAIN, namespace, gpus=2, cpu=True, checkpointing=option)
    assert namespace["calls"] == calls
    assert "forward" not in vars(namespace["model"].blocks[0])
    assert not hasattr(type(namespace["model"].blocks[0]).forward, "__wrapped__")


OF_THE_CELL = """
from torch.utils.checkpoint import checkpoint

class Own(Deep):
    def forward(self, x):
        return self.head(checkpoint(self.others, self.blocks[1](x), use_reentrant=False))

    def others(self, x):
        return self.blocks[2](torch.tanh(self.blocks[0](x)))
model = Own()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""


@pytest.mark.parametrize("setup", [BLOCKS, BLOCKS + OF_THE_CELL], ids=["option", "of the cell"])
def test_blocks_are_recomputed_as_they_were_split(setup: str) -> None:
    """A hook keeps the model from running on samples as a whole; its other modules do."""
    hook = "model.blocks[1].up.register_forward_hook(lambda *given: None)\n"
    case = idiom("with a hook", hook + TRAIN, setup=setup)
    compare_whole_batches(case, exact="always", checkpointing=setup == BLOCKS).assert_equal()


def test_checkpointing_of_transformers_ends_with_the_run() -> None:
    namespace = notebook(BERT)
    model = namespace["model"]
    before = {m: (set(vars(m)), len(m._forward_hooks)) for m in model.modules()}
    cell = TRAIN_BERT + "on = model.bert.encoder.layer[0].gradient_checkpointing\n"
    nbmgpu.run(cell, namespace, gpus=2, cpu=True, checkpointing=True)
    assert namespace["on"]
    assert {m: (set(vars(m)), len(m._forward_hooks)) for m in model.modules()} == before
    assert not model.bert.encoder.layer[0].gradient_checkpointing


def test_a_model_without_blocks_gives_a_notice() -> None:
    run = nbmgpu.run(TRAIN, notebook(BATCH_NORM), gpus=2, cpu=True, checkpointing=True)
    assert "no-checkpoint-blocks" in run.view.notices


def test_blocks_are_outermost_and_have_no_batch_normalization() -> None:
    def part(*more):
        return nn.Sequential(nn.Linear(2, 2), *more)

    inner = nn.ModuleList([part(), part(nn.BatchNorm1d(2))])
    outer = nn.Sequential(nn.Linear(2, 2), part(), nn.Tanh())
    model = nn.ModuleDict({"inner": inner, "outer": outer})
    assert blocks(model) == [inner[0], outer[1]]
