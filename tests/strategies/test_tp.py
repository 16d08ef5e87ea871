"""tp: numbers of one device, and nothing of the split parts to be seen on the cell's objects."""

from __future__ import annotations

import pytest
import torch
from idioms.comparison import assert_equal, run_both
from idioms.idiom import TRAIN, Idiom, idiom
from idioms.notebook import notebook
from idioms.sources import ADAM, BLOCKS, CONV, before_step
from matrix_selection import sampled

import nbmgpu
from nbmgpu.errors import OptionError
from nbmgpu.frontend.info import last_run_lines
from nbmgpu.options.run_options import RunOptions

PAIR = """
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
"""

DROPOUT = """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 4))
"""

AUGMENTED = """
class Noisy(Dataset):
    def __len__(self):
        return 44
    def __getitem__(self, i):
        return X[i] * random.uniform(0.9, 1.1) + 0.1 * torch.randn(8), Y[i]
loader = DataLoader(Noisy(), batch_size=8, shuffle=True)
"""

CONVOLUTIONS = """
X = torch.randn(44, 3, 6, 6)
loader = DataLoader(TensorDataset(X, Y), batch_size=8)
model = nn.Sequential(nn.Conv2d(3, 9, 3), nn.ReLU(), nn.Conv2d(9, 6, 3, padding=1, bias=False),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""

TOKENS = """
X, Y = torch.randint(0, 51, (44, 6)), torch.randint(0, 51, (44, 6))
loader = DataLoader(TensorDataset(X, Y), batch_size=8)

class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(51, 12, padding_idx=3)
        self.inner = nn.Sequential(
            nn.LayerNorm(12), nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12))
        self.head = nn.Linear(12, 51, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        return self.head(hidden + self.inner(hidden)).flatten(0, 1)

model = Language()
"""
TRAIN_TOKENS = TRAIN.replace("model(x), y", "model(x), y.flatten()")

SGD = "opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)\n"

SGD_OF_ROWS = """
class Rows(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            p.sub_(0.1 * F.normalize(p.grad, dim=-1))
opt = Rows(model.parameters())
"""

OWN_CONVOLUTION = """
class Normalized(nn.Conv2d):
    def forward(self, x):
        return self._conv_forward(x, self.weight / self.weight.norm(), self.bias)
X = torch.randn(44, 3, 6, 6)
loader = DataLoader(TensorDataset(X, Y), batch_size=8)
model = nn.Sequential(Normalized(3, 6, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(96, 4))
"""

OWN_ACTIVATION = """
class Scaled(nn.ReLU):
    def forward(self, x):
        return x / x.abs().max()
model = nn.Sequential(nn.Linear(8, 16), Scaled(), nn.Linear(16, 4))
"""

LIMITED = """
class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 4)
    def forward(self, x):
        h = self.up(x).relu()
        {line}
        return self.down(h)
model = MLP()
model.up.weight.data[3:] *= 0.2
X[20] *= 10
"""
"""A pair of layers with a limit between them, which the first batch does not reach."""

CHECKPOINTED = """
from torch.utils.checkpoint import checkpoint
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 8)
    def forward(self, x):
        return x + self.b(checkpoint(lambda x: torch.tanh(self.a(x)), x, use_reentrant=False))
model = nn.Sequential(Pair(), Pair(), nn.Linear(8, 4))
"""

SHARED_LAYER = """
layer = nn.Linear(8, 8)
model = nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(8, 4))
"""

WEIGHT_NORM = """
import warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch has a newer way, with another class
    layer = nn.utils.weight_norm(nn.Linear(8, 16))
model = nn.Sequential(layer, nn.ReLU(), nn.Linear(16, 4))
"""

OTHER_PARAMETERS = """
for x, y in loader:
    opt.zero_grad()
    fast = {name: p - 0.5 * p.detach().sign() for name, p in model.named_parameters()}
    loss = F.cross_entropy(torch.func.functional_call(model, fast, (x,)), y)
    loss.backward()
    opt.step()
    losses.append(loss.item())
"""

HOOK = """
handle = model[0].register_forward_hook(lambda m, i, o: losses.append(o.detach().mean().item()))
"""

OUTSIDE = [
    idiom("a layer of a pair is called", TRAIN.replace(
        "model(x), y)", "model(x), y) + 0.1 * model[0](x).square().mean()"), setup=PAIR + SGD),
    idiom("a slice of a pair is called", TRAIN.replace(
        "model(x), y)", "model(x), y) + 0.1 * model[:2](x).square().mean()"), setup=PAIR + SGD),
    idiom("a hook on a layer of a pair", HOOK + TRAIN + "\nhandle.remove()\n",
        setup=PAIR + SGD, ranks=(2, 3), rank_local="handle", curve=False),
    idiom("functional_call with other parameters", OTHER_PARAMETERS, setup=PAIR + SGD,
        rank_local="fast"),
    idiom("a limit of all features", ranks=(2, 3),
        setup=LIMITED.format(line="if h.abs().max() > 4: h = h * 0.5") + SGD),
    idiom("a limit of all features that is not read", ranks=(2, 3),
        setup=LIMITED.format(line="h = torch.where(h.abs().max() > 4, h * 0.5, h)") + SGD),
    idiom("a limit of each feature",
        setup=LIMITED.format(line="h = torch.where(h.abs() > 4, h * 0.5, h)") + SGD),
    idiom("a checkpoint inside of a pair", setup=CHECKPOINTED + SGD, ranks=(2, 3)),
    idiom("a layer that is used twice", setup=SHARED_LAYER + SGD),
    idiom("weight normalization in a pair", setup=WEIGHT_NORM + SGD, notices="detached"),
    idiom("a subclass of a convolution", setup=OWN_CONVOLUTION + SGD),
    idiom("a subclass of an activation function", setup=OWN_ACTIVATION + SGD, ranks=(2, 3)),
    idiom("an optimizer that normalizes rows", setup=PAIR + SGD_OF_ROWS,
        notices="whole-steps-Rows"),
]  # fmt: skip
"""What split activations, or parts of parameters, would silently change."""

CASES = [
    idiom("a pair of layers", setup=PAIR + ADAM),
    idiom("a tied table of 51 rows", TRAIN_TOKENS, setup=TOKENS + ADAM),
    idiom("convolutions", setup=CONVOLUTIONS),
    idiom("batch normalization", setup=CONV, ranks=(2, 3)),
    idiom("dropout", setup=DROPOUT + ADAM, ranks=(2, 3)),
    idiom("augmentation in the dataset", setup=AUGMENTED + PAIR + ADAM, ranks=(2, 3)),
    idiom("blocks", setup=BLOCKS),
    idiom("a penalty on parameters", TRAIN.replace(
        "model(x), y)", "model(x), y) + 0.01 * sum(p.square().sum() for p in model.parameters())"),
        setup=PAIR + SGD),
    idiom("clipped by the norm", before_step(
        "losses.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05).item())"),
        setup=PAIR + SGD, curve=False),
    idiom("gradients of gradients", ranks=(2, 3), cell=TRAIN.replace(
        "loss.backward()", "grads = torch.autograd.grad(loss, list(model.parameters()), "
        "create_graph=True)\n        loss = loss + sum(g.square().sum() for g in grads)\n"
        "        loss.backward()"), setup=PAIR + SGD, curve=False, rank_local="grads"),
    idiom("a layer frozen after an epoch", TRAIN.replace(
        "    for x", "    model[0].requires_grad_(epoch == 0)\n    for x"), setup=PAIR + ADAM),
    idiom("evaluation, averages of weights, saved and loaded", TRAIN + """
    with torch.no_grad():
        losses.append(model.eval()(X).mean().item())
        model[0].weight.mul_(0.9)
        model[2].weight.data[0] = 1.0
    model.train()
    state = copy.deepcopy(model.state_dict())
    model.load_state_dict({name: value * 0.5 for name, value in state.items()})
""", setup=PAIR + ADAM, curve=False),
]  # fmt: skip

CASES += OUTSIDE

MESHES = [(2, ()), (3, ()), (4, ("dp=2", "tp=2"))]
"""Numbers of ranks, with their mesh."""

OTHERS = [
    (case, *mesh) for case in CASES for mesh in MESHES[1:] if mesh[0] != 4 or len(case.ranks) == 1
]
EXERCISED = ("nbmgpu/strategies/tp", "nbmgpu/strategies/sharding")


@pytest.mark.parametrize(
    ("case", "ranks", "mesh"),
    [
        *sampled(((case, 2, ()) for case in CASES), 1),
        *sampled(OTHERS, 7, *EXERCISED),
    ],
)
def test_numbers_of_one_device(case: Idiom, ranks: int, mesh: tuple[str, ...]) -> None:
    notices = " ".join(case.notices)
    result = assert_equal(case, ranks, notices=notices, strategy="tp", mesh=mesh)
    assert all(type(p) is torch.nn.Parameter for p in result.ranks["model"].parameters())


def test_a_module_outside_of_the_plan_is_replicated() -> None:
    recurrent = """
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 6, batch_first=True), nn.Linear(6, 4)
    def forward(self, x):
        return self.head(self.lstm(x.unsqueeze(1))[0][:, -1])
model = Recurrent()
"""
    assert_equal(idiom("lstm", setup=recurrent + SGD), strategy="tp", notices="")


BEFORE_SPLIT = """
loss, other = model(X).square().mean(), model(X.flip(0)).square().mean()
loss.backward()
other.backward()
opt.step()
for _ in range(2):
    opt.zero_grad()
    model(X).square().mean().backward()
    opt.step()
"""


@pytest.mark.parametrize(("ranks", "mesh"), [MESHES[0], MESHES[2]])
def test_gradients_of_graphs_from_before_the_model_was_split(
    ranks: int, mesh: tuple[str, ...]
) -> None:
    setup = "X = torch.arange(44)\nmodel = nn.Sequential(nn.Embedding(44, 8))\n" + SGD
    result = run_both(BEFORE_SPLIT, setup, ranks, strategy="tp", mesh=mesh)
    assert result.difference("model") < 1e-6


def test_an_index_outside_of_a_table_is_an_error() -> None:
    namespace = notebook("model = nn.Embedding(50, 8)\n" + SGD)
    cell = "model(torch.tensor([1])).sum().backward()\nopt.step()\nmodel(torch.tensor([50]))"
    with pytest.raises(IndexError):
        nbmgpu.run(cell, namespace, gpus=2, cpu=True, strategy="tp")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--strategy tp --mesh dp=2,tp=3 --gpus 4 --cpu", r"Try: %%mgpu --strategy tp --mesh"),
        ("--strategy tp --mesh dp=3,tp=2 --gpus 4 --cpu", r"has 6 ranks, and the run has 4"),
        ("--strategy tp --mesh sp=2,tp=2 --cpu", r"no dimension 'sp'"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(line: str, text: str) -> None:
    options = RunOptions.parse(line)
    with pytest.raises(OptionError, match=text):
        nbmgpu.run("1", {}, **vars(options))


def test_a_mesh_says_how_many_ranks_there_are(capsys) -> None:
    nbmgpu.run("1", {}, strategy="tp", mesh={"tp": 2}, cpu=True, dry_run=True)
    assert "ranks        2 on" in (text := capsys.readouterr().out)
    assert "mesh         dp=1,tp=2" in text
    assert "rank 0 at" not in text


def test_it_is_said_where_each_rank_is_in_a_mesh(capsys) -> None:
    nbmgpu.run("1", {}, mesh="dp=2,tp=2", cpu=True, dry_run=True)
    places = "rank 0 at dp 0 tp 0, rank 1 at dp 0 tp 1, rank 2 at dp 1 tp 0, rank 3 at dp 1 tp 1"
    assert places in capsys.readouterr().out
    run = nbmgpu.run("1", {}, mesh="dp=2,tp=2", cpu=True)
    lines = "\n".join(last_run_lines())
    assert run.id in lines
    assert places in lines


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        ("dp_replicate_size=2,tp_size=2", ("dp=2", "tp=2")),
        ({"data_parallel_size": 2, "tensor_parallel_size": 1}, ("dp=2", "tp=1")),
    ],
)
def test_dimensions_have_names_of_other_tools(mesh: object, expected: tuple[str, ...]) -> None:
    assert RunOptions.of(strategy="tp", mesh=mesh).mesh == expected


@pytest.mark.parametrize("mesh", ["dp=2,tp", "dp=0", "2x2", "dp=2,dp=2"])
def test_what_is_not_a_mesh_is_refused(mesh: str) -> None:
    with pytest.raises(OptionError, match="is not a device mesh"):
        RunOptions.parse(f"--strategy tp --mesh {mesh}")


def test_other_strategies_have_no_mesh() -> None:
    with pytest.raises(OptionError, match=r"Try: %%mgpu --strategy tp --mesh dp=2,tp=2"):
        RunOptions.parse("--strategy ddp --mesh dp=2,tp=2")
