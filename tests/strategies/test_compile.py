"""``--compile``: compiled modules have the numbers of others."""

from __future__ import annotations

import os

import pytest
from idioms.comparison import assert_equal
from idioms.idiom import TRAIN, Idiom, idiom
from idioms.notebook import notebook
from idioms.sources import BERT, BLOCKS, CONV, TRAIN_BERT, with_loss

import nbmgpu
from nbmgpu.errors import StrategyError

pytestmark = pytest.mark.slow

MATRIX = pytest.mark.matrix("nbmgpu/strategies", "nbmgpu/rank/training")

COMPILED = [
    ("a model of the notebook", idiom("plain"), {}),
    ("batch normalization", idiom("conv", setup=CONV), {"sync_batchnorm": True}),
    ("units of fsdp", idiom("layers"), {"strategy": "fsdp", "fsdp_units": ("Linear",)}),
    ("blocks as units of fsdp", idiom("blocks", setup=BLOCKS),
        {"strategy": "fsdp", "fsdp_units": ("Block",)}),
    ("BERT, its loss outside of what is compiled", idiom("BERT", TRAIN_BERT, setup=BERT), {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "options"),
    [
        pytest.param(case, options, id=name, marks=[MATRIX] if number else [])
        for number, (name, case, options) in enumerate(COMPILED)
    ],
)
def test_compiled_modules_have_the_numbers_of_others(
    case: Idiom, options: dict[str, object]
) -> None:
    result = assert_equal(case, notices="", compile=True, **options)
    assert result.ranks["model"]._compiled_call_impl is None


LOSS_INSIDE = """
class Whole(Net):
    def forward(self, x, y):
        return F.cross_entropy(super().forward(x), y)
model = Whole()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""


def test_a_loss_in_compiled_code_is_refused() -> None:
    cell = with_loss("model(x, y)")
    with pytest.raises(StrategyError, match="computes its loss itself"):
        nbmgpu.run(cell, notebook(LOSS_INSIDE), gpus=2, cpu=True, compile=True)


def test_without_a_compiler_the_cell_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"])  # restored: what the cell sets comes back
    monkeypatch.setenv("CXX", os.environ.get("CXX", ""))
    cell = "import os\nos.environ['PATH'], os.environ['CXX'] = '', ''\n" + TRAIN
    with pytest.raises(StrategyError, match="needs a C\\+\\+ compiler"):
        nbmgpu.run(cell, notebook(), gpus=2, cpu=True, compile=True)
