"""pp: numbers of one device, in every stage, and nothing of the stages to be seen by the cell."""

from __future__ import annotations

import weakref

import pytest
import torch
from idioms.comparison import assert_equal, run_both
from idioms.idiom import TRAIN, Idiom, idiom
from idioms.model_parallelism import MODELS, TEXTS
from idioms.notebook import notebook
from idioms.sources import ADAM, BLOCKS, CONV, before_step
from matrix_selection import sampled
from torch import nn

import nbmgpu
from nbmgpu.errors import OptionError, StrategyError
from nbmgpu.options.run_options import RunOptions
from nbmgpu.strategies.checkpoint import outside_of_checkpoints
from nbmgpu.strategies.pp.stacks import find_stacks
from nbmgpu.strategies.pp.stage_balance import balance

LAYERS = """
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 9), nn.ReLU(inplace=True),
                      nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 4))
"""
LARGE_EPS = ADAM.replace("lr=1e-2", "lr=1e-2, eps=1e-4")
"""Gradients in the size of their rounding then do not make steps of ``lr``."""

SGD = "opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)\n"

DROPOUT = """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 8),
                      nn.Dropout(0.2), nn.Linear(8, 4))
"""

SPECTRAL = """
model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 16)), nn.Tanh(),
                      nn.Linear(16, 8), nn.Linear(8, 4))
"""

MIXING = """
class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        return self.layer(x - x.mean(0))
model = nn.Sequential(nn.Linear(8, 8), Centred(), nn.Linear(8, 4))
"""

LIMITED = """
class Limited(nn.Linear):
    def forward(self, x):
        {line}
        return super().forward(x)
model = nn.Sequential(nn.Linear(8, 8), Limited(8, 8), nn.Linear(8, 4))
X[20] *= 30
"""
"""A layer that halves its input behind a limit, which the first batch does not reach."""

RESIDUAL = """
class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8, 8), *(
            nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8)) for _ in range(3))])
        self.head = nn.Linear(8, 4)
    def forward(self, x):
        hidden = []
        for block in self.blocks:
            x = block(x)
            hidden.append(x)
        return self.head(x + hidden[0] + hidden[1].tanh())
model = Residual()
"""

SEQUENCE_FIRST = """
X = torch.randn(44, 8, 8)
loader = DataLoader(TensorDataset(X, Y), batch_size=8)

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
        self.layers, self.head = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), \
            nn.Linear(8, 4)
    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.layers(x.transpose(0, 1), mask=mask).mean(0))
model = Encoder()
"""

SQUARE_MASK = SEQUENCE_FIRST.replace("dropout=0.0", "dropout=0.0, batch_first=True").replace(
    "x.transpose(0, 1)", "x").replace("mean(0)", "mean(1)")  # fmt: skip

LIST_OF_LAYERS = """
class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 4)
    def forward(self, x, skip=False):
        for index, layer in enumerate(self.layers):
            if not (skip and index == 2):
                x = layer(x).tanh() if index == 1 else layer(x)
        return self.head(x)
model = Deep()
"""

NOISE_BETWEEN = """
class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3)) for _ in range(3))
        self.head = nn.Linear(8, 4)
    def forward(self, x):
        for layer in self.layers:
            noise = 0.1 * torch.randn(x.shape)
            x = layer(x) + noise
        return self.head(x)
model = Noisy()
"""

STATEFUL = """
class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.gate = nn.Linear(8, 8), nn.Parameter(torch.zeros(()))
        self.before, self.calls = None, 0
        self.register_buffer("mean", torch.zeros(8))
    def forward(self, x):
        y = torch.tanh(self.layer(x)) + self.gate * x.mean(0)
        if self.before is not None and self.before.shape == y.shape:
            y = y + 0.5 * self.before
        if self.training:
            self.mean, self.calls = 0.9 * self.mean + 0.1 * y.detach().mean(0), self.calls + 1
        self.before = y.detach()
        return y
model = nn.Sequential(Stateful(), Stateful(), Stateful(), nn.Linear(8, 4))
"""

GATES = """
class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.gate = nn.Linear(8, 8), nn.Parameter(torch.zeros(1))
    def forward(self, x):
        return x + self.gate * self.layer(x - x.mean(0))
model = nn.Sequential(nn.Linear(8, 8), Gated(), Gated(), nn.Linear(8, 4))
"""

NORMS = """
class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(8), nn.Linear(8, 8)
    def forward(self, x):
        return self.layer(self.norm(x)).tanh()
model = nn.Sequential(Normed(), Normed(), nn.Linear(8, 4))
"""
NORMS_FROZEN = TRAIN.replace(
    "    for x",
    "    model.train()\n    for norm in (model[0].norm, "
    "model[1].norm):\n        norm.train(epoch > 0)\n    for x",
)

COINS = """
class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        return self.layer(x).tanh() if random.random() + float(np.random.rand()) < 1.2 else x
model = nn.Sequential(*(Deep() for _ in range(4)), nn.Linear(8, 4))
"""

CONDITION = """
class Conditional(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x, condition, scale):
        return self.layer(x if scale == 0 else x + scale * condition).tanh()
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.condition, self.head = nn.Linear(8, 8), nn.Linear(8, 4)
        self.layers = nn.ModuleList(Conditional() for _ in range(4))
    def forward(self, x, scale):
        condition = self.condition(x)
        for layer in self.layers:
            x = layer(x, condition, scale)
        return self.head(x)
model = Model()
opt = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)
"""

CHECKPOINTED = LIST_OF_LAYERS.replace(
    "layer(x).tanh()", "checkpoint(layer, x, use_reentrant=False).tanh()"
).replace("class Deep", "from torch.utils.checkpoint import checkpoint\nclass Deep")

CHECKPOINTED_PARTS = """
from torch.utils.checkpoint import checkpoint
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(P)
    def forward(self, x):
        return x + self.b(checkpoint(self.inner, x, use_reentrant=False))
    def inner(self, x):
        return torch.tanh(self.drop(self.a(x)))
model = nn.Sequential(nn.Linear(8, 8), *(Block() for _ in range(3)), nn.Linear(8, 4))
"""

PLAIN = idiom("layers", setup=LAYERS + ADAM)

CASES = [
    idiom("random numbers between layers with dropout", setup=NOISE_BETWEEN + SGD,
        notices="pipeline-whole-batches", ranks=(2, 3)),
    idiom("layers with attributes, buffers and a gate", TRAIN + """
    losses.append(model.state_dict()["1.mean"].sum().item() + model[2].calls)
""", setup=STATEFUL + SGD, curve=False, notices="pipeline-whole-batches", ranks=(2, 3)),
    idiom("gates that are closed at first", setup=GATES + SGD,
        notices="pipeline-whole-batches", ranks=(2, 3)),
    idiom("gates that are tiny at first",
        setup=GATES.replace("torch.zeros(1)", "torch.full((1,), 1e-6)") + SGD,
        notices="pipeline-whole-batches", ranks=(2, 3)),
    idiom("batch normalization frozen in the first epoch", NORMS_FROZEN, setup=NORMS + SGD,
        notices="pipeline-whole-batches", ranks=(2, 3), rank_local="norm"),
    idiom("layers skipped by Python's and NumPy's coins", setup=COINS + SGD,
        notices="pipeline-whole-batches", ranks=(2, 3)),
    idiom("an argument that is unused at times", TRAIN.replace(
        "model(x)", "model(x, len(losses) % 2)"), setup=CONDITION, ranks=(2, 3)),
    idiom("a checkpoint of one layer", setup=CHECKPOINTED + SGD),
    idiom("a checkpoint inside of layers",
        setup="P = 0.0" + CHECKPOINTED_PARTS + SGD),
    idiom("a checkpoint inside of layers, with dropout",
        setup="P = 0.3" + CHECKPOINTED_PARTS + SGD,
        notices="pipeline-whole-batches", ranks=(2, 3)),
    PLAIN,
    idiom("dropout", setup=DROPOUT + ADAM, notices="pipeline-whole-batches", ranks=(2, 3)),
    idiom("batch normalization", setup=CONV, notices="pipeline-whole-batches", ranks=(2, 3)),
    idiom("spectral normalization", setup=SPECTRAL + SGD, notices="pipeline-whole-batches",
        ranks=(2, 3)),
    idiom("samples that meet", setup=MIXING + SGD, notices="pipeline-whole-batches",
        ranks=(2, 3)),
    idiom("outputs between layers, changed in place", setup=RESIDUAL + SGD),
    idiom("the sequence in the first dimension", setup=SEQUENCE_FIRST + SGD,
        notices="pipeline-whole-batches", ranks=(2, 3)),
    idiom("a mask as large as the batch", setup=SQUARE_MASK + SGD),
    idiom("a limit of all samples", notices="pipeline-whole-batches", ranks=(2, 3),
        setup=LIMITED.format(line="if x.abs().max() > 9: x = x * 0.5") + SGD),
    idiom("a limit of all samples that is not read", notices="pipeline-whole-batches", ranks=(2, 3),
        setup=LIMITED.format(line="x = torch.where(x.abs().max() > 9, x * 0.5, x)") + SGD),
    idiom("exponentials without a maximum", setup=SGD.join((
        LIMITED.format(line="x = x.mul(3).exp(); x = x / x.sum(-1, keepdim=True)"), ""))
        + "X[20] /= 30\n"),
    idiom("a loop that doubles numbers", notices="pipeline-whole-batches", ranks=(2, 3),
        setup=LIMITED.format(line="while x.norm() < 40: x = 2 * x") + SGD),
    idiom("a limit of each sample", setup=SGD.join((
        LIMITED.format(line="x = torch.where(x.abs().amax(-1, True) > 9, x * 0.5, x)"), ""))),
    idiom("operations between layers", setup=LIST_OF_LAYERS + SGD),
    idiom("a layer that is skipped at times", TRAIN.replace(
        "model(x)", "model(x, skip=len(losses) % 2 == 1)"), setup=LIST_OF_LAYERS + SGD),
    idiom("the model is called twice", before_step("", "model(x) + model(0.5 * x)"),
        setup=LAYERS + SGD),
    idiom("a slice of the layers, and one of them", TRAIN.replace(
        "model(x), y)", "model(x), y) + model[:3](x).square().mean() + model[0](x).mean()"),
        setup=LAYERS + SGD),
    idiom("gradients of the input", TRAIN.replace(
        "model(x)", "model(x.requires_grad_())").replace(
        "opt.step()", "losses.append(x.grad.abs().sum().item())\n        opt.step()"),
        setup=LAYERS + SGD, curve=False, ranks=(2, 3)),
    idiom("a penalty on parameters", TRAIN.replace(
        "model(x), y)", "model(x), y) + 0.01 * sum(p.square().sum() for p in model.parameters())"),
        setup=LAYERS + SGD),
    idiom("clipped by the norm", before_step(
        "losses.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05).item())"),
        setup=LAYERS + SGD, curve=False),
    idiom("torch.autograd.grad", TRAIN.replace(
        "loss.backward()", "grads = torch.autograd.grad(loss, list(model.parameters()))\n"
        "        for p, g in zip(model.parameters(), grads):\n            p.grad = g"),
        setup=LAYERS + SGD, rank_local="grads", ranks=(2, 3), curve=False),
    idiom("two backward passes over one graph", TRAIN.replace(
        "loss.backward()", "loss.backward(retain_graph=True)\n        loss.backward()"),
        setup=LAYERS + SGD, ranks=(2, 3)),
    idiom("a layer frozen after an epoch", TRAIN.replace(
        "    for x", "    model[2].requires_grad_(epoch == 0)\n    for x"), setup=LAYERS + ADAM),
    idiom("a layer that has no gradient at first", TRAIN.replace(
        "model(x)", "(model[:2](x)[:, :4] if len(losses) < 3 else model(x))"),
        setup=LAYERS + LARGE_EPS),
    idiom("evaluation, averages of weights, saved and loaded", TRAIN + """
    with torch.no_grad():
        losses.append(model.eval()(X).mean().item())
        model[0].weight.mul_(0.9)
        model[4].weight.data[0] = 1.0
    with torch.inference_mode():
        losses.append(model(X).mean().item())
    model.train()
    state = copy.deepcopy(model.state_dict())
    model.load_state_dict({name: value * 0.5 for name, value in state.items()})
""", setup=LAYERS + ADAM, curve=False),
    idiom("blocks of several layers", setup=BLOCKS),
]  # fmt: skip

MESHES = [(2, ()), (3, ()), (4, ("dp=2", "pp=2"))]
OTHERS = [
    (case, *mesh) for case in CASES for mesh in MESHES[1:] if mesh[0] != 4 or len(case.ranks) == 1
]
EXERCISED = ("nbmgpu/strategies/pp", "nbmgpu/strategies/sharding")


@pytest.mark.parametrize(
    ("case", "ranks", "mesh"),
    [*sampled(((case, 2, ()) for case in CASES), 1), *sampled(OTHERS, 11, *EXERCISED)],
)
def test_numbers_of_one_device(case: Idiom, ranks: int, mesh: tuple[str, ...]) -> None:
    notices = " ".join(case.notices)
    result = assert_equal(case, ranks, notices=notices, strategy="pp", mesh=mesh)
    assert all(type(p) is torch.nn.Parameter for p in result.ranks["model"].parameters())


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "interleaved"}, {"microbatches": 3}, {"microbatches": 1},
        {"split_points": ("4",)}, {"split_points": ("2", "4", "6"), "schedule": "interleaved"},
    ],
    ids=str,
)  # fmt: skip
def test_options_do_not_change_the_numbers(options: dict[str, object]) -> None:
    assert_equal(PLAIN, strategy="pp", **options)


@pytest.mark.parametrize("when", ["True", "x.requires_grad"], ids=["trial", "training"])
def test_an_exception_of_a_layer_on_another_rank_ends_the_cell(when: str) -> None:
    """It saves frames for %mgpu debug, which hold outputs of layers that have not run."""
    layers = LIMITED.format(line=f"assert not {when}, 'a bad layer'").replace("X[20] *= 30", "")
    layers = layers.replace("Limited(8, 8)", "nn.Linear(8, 8), nn.Tanh(), Limited(8, 8)")
    with pytest.raises(AssertionError, match="a bad layer") as error:
        nbmgpu.run(TRAIN, notebook(layers + SGD), gpus=2, cpu=True, strategy="pp")
    assert "Rank 1 of 2" in str(error.value.__cause__)


def test_microbatches_that_are_asked_for_draw_other_numbers() -> None:
    result = run_both(TRAIN, DROPOUT + ADAM, 2, strategy="pp", microbatches=2)
    assert 1e-4 < result.difference("losses") < 0.5
    assert "pipeline-random" in result.notices


INNER_HOOK = """
seen = []
handle = model.blocks[0].up.register_forward_hook(lambda m, i, o: seen.append(o.shape[0]))
"""


def test_hooks_inside_of_layers_are_announced() -> None:
    cell = INNER_HOOK + TRAIN + "\nhandle.remove()\n"
    result = run_both(cell, BLOCKS, 2, strategy="pp")
    assert "pipeline-hooks" in result.notices
    assert result.difference("model") < 1e-6


GENERATE = """
model.eval()
tokens = model.generate(ids[:3, :4], max_new_tokens=5, do_sample=False, pad_token_id=0)
with torch.no_grad():
    hidden = model(ids[:3], output_hidden_states=True).hidden_states
sums = [float(h.sum()) for h in hidden]
"""


def test_generated_tokens_and_hidden_states() -> None:
    result = run_both(GENERATE, MODELS["llama"] + TEXTS, 2, strategy="pp")
    assert torch.equal(result.alone["tokens"], result.ranks["tokens"])
    assert result.ranks["sums"] == pytest.approx(result.alone["sums"], abs=1e-4)
    assert result.ranks["model"].config.use_cache


CAUSES = {
    "a single layer": ("model = nn.Linear(8, 4)\n", TRAIN, "Linear has no sequence of 2 layers"),
    "gradients of gradients": (
        LAYERS,
        TRAIN.replace("loss.backward()", "loss.backward(create_graph=True)"),
        "gradients of gradients",
    ),
    "a reentrant checkpoint": (
        LIST_OF_LAYERS.replace(
            "layer(x).tanh()",
            "torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=True).tanh()",
        )
        + "import torch.utils.checkpoint\n",
        TRAIN,
        "such as a reentrant checkpoint",
    ),
    "an input changed in place": (
        "model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8), nn.Linear(8, 4))\n",
        TRAIN,
        "layer 0 or one after it changes its input in place",
    ),
    "an object that a layer may change": (
        "class Filling(nn.Linear):\n    def __init__(self): super().__init__(8, 8)\n"
        "    def forward(self, x, cache): return super().forward(x)\n"
        + LIST_OF_LAYERS.replace("nn.Linear(8, 8)", "Filling()")
        .replace("layer(x)", "layer(x, object())"),
        TRAIN,
        "called with a object",
    ),
    "an output that is used after a step": (
        LAYERS,
        TRAIN.replace("opt.step()", "early = model[:2](x)\n        opt.step()").replace(
            "losses.append(loss.item())", "losses.append(early.sum().item())"
        ),
        "used for the first time after its input or its parameters have changed",
    ),
    "a list that a layer appends to": (
        LIST_OF_LAYERS.replace("nn.Linear(8, 8)", "Listing()")
        .replace("layer(x)", "layer(x, self.seen)")
        .replace("self.head =", "self.seen = []\n        self.head =")
        .replace("class Deep", """class Listing(nn.Linear):
    def __init__(self):
        super().__init__(8, 8)
    def forward(self, x, seen):
        seen.append(x.detach())
        return super().forward(x)

class Deep"""),
        TRAIN,
        "changes a list or dict that it is called with",
    ),
    "a scale outside of the layers": (
        """
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        for layer in self.layers:
            layer.register_forward_pre_hook(lambda m, i: None)
            layer.outer = [self.scale]
            layer.__class__ = ScaledLayer
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x[:, :4]
class ScaledLayer(nn.Linear):
    def forward(self, x):
        return super().forward(x) * self.outer[0]
model = Scaled()
""",
        TRAIN,
        "neither its parameter nor its argument",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CAUSES)
def test_what_is_refused(name: str) -> None:
    setup, cell, text = CAUSES[name]
    with pytest.raises(StrategyError, match=text):
        nbmgpu.run(cell, notebook(setup + SGD), gpus=2, cpu=True, strategy="pp")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            "--strategy pp --schedule 1f1b",
            "1f1b and zerobubble compute each microbatch's loss in the schedule",
        ),
        ("--strategy pp --microbatches 0", "Try: %%mgpu --strategy pp --microbatches 4"),
        ("--strategy pp --split-points 2..", "is not the name of a layer"),
        ("--strategy ddp --microbatches 4", "Try: %%mgpu --strategy pp --microbatches 4"),
        ("--strategy pp --compile", "Try: %%mgpu --strategy fsdp"),
    ],
)
def test_options_that_are_refused(line: str, text: str) -> None:
    with pytest.raises(OptionError) as caught:
        RunOptions.parse(line)
    assert text in str(caught.value)


def test_split_points_that_do_not_exist() -> None:
    with pytest.raises(StrategyError, match=r"--split-points \d$"):
        nbmgpu.run(TRAIN, notebook(LAYERS + SGD), gpus=2, cpu=True, strategy="pp",
            split_points=("9",))  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "stages", "expected"),
    [
        ([1, 1, 1, 1], 2, (0, 0, 1, 1)),
        ([9, 1, 1, 1], 2, (0, 1, 1, 1)),
        ([1, 0, 1, 0], 2, (0, 0, 1, 1)),
        ([0, 3, 0, 2, 2], 2, (0, 0, 0, 1, 1)),
        ([4, 3, 3, 4, 1], 3, (0, 1, 1, 2, 2)),
        ([5, 5], 1, (0, 0)),
    ],
)
def test_stages_are_balanced(sizes: list[int], stages: int, expected: tuple[int, ...]) -> None:
    assert balance(sizes, stages) == expected


def test_layers_that_share_parameters_are_not_divided() -> None:
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    layers[2].weight = layers[0].weight
    assert find_stacks(nn.Sequential(layers), 2, 2) == []


def test_a_graph_without_a_backward_pass_is_freed() -> None:
    x = torch.ones(3, requires_grad=True)
    with outside_of_checkpoints():
        saved = x.exp()  # saves its output for the backward pass
    assert torch.autograd.grad(saved.sum(), x)[0].allclose(x.exp())
    with outside_of_checkpoints():
        saved = x.exp()
    reference = weakref.ref(saved)
    del saved
    assert reference() is None
