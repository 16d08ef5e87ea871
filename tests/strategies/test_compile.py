"""``--compile``: compiled modules have the numbers of others."""

from __future__ import annotations

import os

import pytest
from idioms.comparison import assert_equal, run_both
from idioms.idiom import TRAIN, Idiom, idiom
from idioms.notebook import notebook
from idioms.sources import BERT, BLOCKS, CONV, TRAIN_BERT, with_loss
from torch._dynamo.exc import Unsupported

import nbmgpu
from nbmgpu.errors import StrategyError
from nbmgpu.report.error_hints import find_hint

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


ATTENTION = """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside, self.outside, self.norm = nn.Linear(8, 24), nn.Linear(8, 8), nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        heads = self.inside(self.norm(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(*heads)
        x = x + self.outside(found.transpose(1, 2).flatten(2))
        return x + self.down(torch.tanh(self.up(x)))

class Sequences(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Attention() for _ in range(4))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = torch.stack([x, x * 2, x.flip(-1), x + 1], 1)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])

model = Sequences()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""

OWN_COMPILE = {
    "wrapper": f"compiled = torch.compile(model, backend='eager')\n"
    f"{with_loss('F.cross_entropy(compiled(x), y)')}\ndel compiled\n",
    "in place": f"model.compile(backend='eager')\n{TRAIN}\nmodel._compiled_call_impl = None\n",
    "blocks": f"for block in model.blocks:\n    block.compile(backend='eager')\n{TRAIN}\n"
    "for block in model.blocks:\n    block._compiled_call_impl = None\n",
}
"""How a cell compiles a model itself; the notebook's is plain again, to be compared."""


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of torch's compiler, on inputs
@pytest.mark.parametrize("how", OWN_COMPILE)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"strategy": "tp"}, id="tp"),
        pytest.param({"strategy": "pp"}, id="pp"),
        pytest.param({"strategy": "tp", "sequence_parallel": True}, id="slices", marks=MATRIX),
        pytest.param({"strategy": "sp"}, id="sp", marks=MATRIX),
        pytest.param({"strategy": "cp"}, id="cp", marks=MATRIX),
    ],
)
def test_models_that_the_cell_compiles(how: str, options: dict[str, object]) -> None:
    assert_equal(idiom(how, OWN_COMPILE[how], setup=ATTENTION), **options)


TIED = """
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.inside = nn.Embedding(4, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 4, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x):
        return self.head(torch.tanh(self.inside(x + self.table((x.sum(1) > 0).long()))))

model = Tied()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("strategy", ["fsdp", "tp", pytest.param("zero2", marks=MATRIX)])
def test_tied_weights_of_a_model_that_the_cell_compiles(strategy: str) -> None:
    assert_equal(idiom(strategy, OWN_COMPILE["wrapper"], setup=TIED), strategy=strategy)


@pytest.mark.parametrize("strategy", ["tp", pytest.param("fsdp", marks=MATRIX)])
def test_a_single_graph_is_impossible_with_collectives(strategy: str) -> None:
    compiled = "torch.compile(model, backend='eager', fullgraph=True)"
    with pytest.raises(Unsupported, match=r"disable|HOP") as caught:
        run_both(with_loss(f"F.cross_entropy({compiled}(x), y)"), strategy=strategy)
    hint = find_hint(type(caught.value).__name__, str(caught.value))
    assert "without fullgraph=True" in hint.remedy


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
