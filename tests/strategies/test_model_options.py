"""Options that change how modules compute: batch statistics, checkpoints, precision, compiling."""

from __future__ import annotations

import pickle

import pytest
import torch
from numerics.idiom import TRAIN, compare, idiom, notebook
from torch import nn

import nbmgpu
from nbmgpu.errors import StrategyError
from nbmgpu.strategies.repeated_blocks import blocks

NOISY = {"rank-0-values"}

# ---------------------------------------------------------------- --sync-batchnorm

ADAM = "opt = torch.optim.Adam(model.parameters(), lr=1e-2)\n"
FLAT = """
model = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12{}), nn.Tanh(), nn.Linear(12, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
"""
CONV = """
model = nn.Sequential(
    nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 6, 2, padding=1), nn.BatchNorm2d(6), nn.Tanh(),
    nn.Conv2d(6, 6, 2), nn.BatchNorm2d(6), nn.Tanh(), nn.Flatten(), nn.Linear(24, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
"""
UNEVEN = "loader = DataLoader(dataset, batch_size={})\n"
DOUBLE = """
model.double()
loader = DataLoader(TensorDataset(X.double(), Y), batch_size={})
"""
"""For batches so small that rounding is made large, on one device too."""
SEVERAL = (2, 3)

NORMALISED = [
    idiom("1d", setup=FLAT.format(""), ranks=SEVERAL),
    idiom("1d, uneven", setup=FLAT.format("") + DOUBLE.format(7), ranks=SEVERAL),
    idiom("slices of one sample", setup=FLAT.format("") + DOUBLE.format(3), rtol=1e-9),
    idiom("a last batch too small to cut", setup=FLAT.format("") + UNEVEN.format(6), ranks=(3,)),
    idiom("no momentum", setup=FLAT.format(", momentum=None")),
    idiom("not affine", setup=FLAT.format(", affine=False")),
    idiom("no running statistics", setup=FLAT.format(", track_running_stats=False")),
    idiom("2d, a conv net", setup=CONV + UNEVEN.format(7), ranks=SEVERAL),
    # A bias before it has no gradient but rounding, which Adam would make large.
    idiom("2d, Adam", setup=CONV + "model[1].bias = model[4].bias = None\n" + ADAM),
    idiom("3d", setup="""
        model = nn.Sequential(nn.Unflatten(1, (2, 2, 2, 1)), nn.BatchNorm3d(2),
            nn.Flatten(), nn.Linear(8, 4))
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        """),
    idiom("large means", setup=FLAT.format("") + """
X += 100
loader = DataLoader(TensorDataset(X, Y), batch_size=8)
model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""),
    idiom("evaluation in between", """
scores = []
for epoch in range(2):
    model.train()
    for x, y in loader:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        scores.append(sum(F.cross_entropy(model(x), y).item() for x, y in val_loader))
""", setup=CONV),
    idiom("a summed loss", TRAIN.replace("(model(x), y)", "(model(x), y, reduction='sum') / 20"),
        setup=CONV),
    idiom("ignored targets", TRAIN.replace("(model(x), y)", "(model(x), y, ignore_index=1)"),
        setup=CONV + UNEVEN.format(7)),
    idiom("accumulation in the cell", """
for step, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y) / 2
    loss.backward()
    losses.append(loss.item())
    if step % 2:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        opt.step()
        opt.zero_grad()
""", setup=CONV),
    idiom("a penalty on gradients", """
for x, y in loader:
    x.requires_grad_()
    loss = F.cross_entropy(model(x), y, reduction="none")
    slope, = torch.autograd.grad(loss.sum(), x, create_graph=True)
    loss = loss.mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
""", shares="slope", setup=FLAT.format("")),
    idiom("two models", """
for x, y in loader:
    for net, step in ((model, opt), (other, other_opt)):
        step.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        step.step()
        losses.append(loss.item())
""", setup=FLAT.format("") + """
other = nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(5), nn.GELU(), nn.Linear(5, 4))
other_opt = torch.optim.SGD(other.parameters(), lr=0.1)
"""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "ranks"),
    [pytest.param(c, n, id=f"{c.name}, {n} ranks") for c in NORMALISED for n in c.ranks],
)
def test_batch_statistics_are_one_devices(case, ranks) -> None:
    result = compare(case, ranks, sync_batchnorm=True)
    assert not result.wrong, "\n".join(result.wrong)
    assert result.split()
    assert not result.notices - NOISY


def test_batch_statistics_with_sharded_optimizer_states() -> None:
    result = compare(idiom("conv", setup=CONV), 2, strategy="zero1", sync_batchnorm=True)
    assert not result.wrong, "\n".join(result.wrong)


def test_a_padding_shard_does_not_count() -> None:
    setup = CONV + "X, Y = X[:40], Y[:40]\ndataset = TensorDataset(X, Y)\n"
    alone, shared = (notebook(setup + UNEVEN.format(size)) for size in (24, 8))
    exec(TRAIN, alone)
    nbmgpu.run(TRAIN, shared, gpus=3, cpu=True, batch="per-rank", sync_batchnorm=True)
    states = alone["model"].state_dict(), shared["model"].state_dict()
    for name in states[0]:
        torch.testing.assert_close(states[0][name], states[1][name], rtol=1e-5, atol=1e-6)


def test_a_class_with_its_own_forward_is_not_synchronised_and_named() -> None:
    setup = (
        FLAT.format("")
        + """
class Own(nn.BatchNorm1d):
    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, True)
model[1] = Own(12)
"""
    )
    namespace = notebook(setup)
    run = nbmgpu.run(TRAIN, namespace, gpus=2, cpu=True, sync_batchnorm=True)
    assert "batch-norm" in run.view.notices


def test_layers_keep_their_type() -> None:
    namespace = notebook(CONV)
    layer = namespace["model"][2]
    cell = TRAIN + "import pickle\nkind, size = type(model[2]).__name__, len(pickle.dumps(model))\n"
    nbmgpu.run(cell, namespace, gpus=2, cpu=True, sync_batchnorm=True)
    assert namespace["model"][2] is layer
    assert (type(layer), namespace["kind"]) == (nn.BatchNorm2d, "BatchNorm2d")
    assert namespace["size"] == len(pickle.dumps(namespace["model"]))


def test_without_the_option_the_notice_names_it() -> None:
    run = nbmgpu.run(TRAIN, notebook(CONV), gpus=2, cpu=True)
    assert "--sync-batchnorm" in run.view.notices["batch-norm"].text


# ---------------------------------------------------------------- --checkpointing

BLOCKS = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
    def forward(self, x, scale=1.0):
        return x + scale * self.down(torch.tanh(self.up(x)))
class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, 4)
    def forward(self, x):
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.head(x)
model = Deep()
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
"""
CALLS = """
calls = 0
def count(module, args, output):
    global calls
    calls += 1
model.blocks[1].up.register_forward_hook(count)
"""
BERT = """
from transformers import BertConfig, BertForSequenceClassification
model = BertForSequenceClassification(BertConfig(
    vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
tokens = torch.randint(40, (22, 6))
loader = DataLoader(TensorDataset(tokens, Y[:22] % 2), batch_size=5)
"""
ON_TOKENS = """
for x, y in loader:
    opt.zero_grad()
    loss = model(input_ids=x, labels=y).loss
    loss.backward()
    opt.step()
    losses.append(loss.item())
"""

RECOMPUTED = [
    idiom("blocks in a ModuleList", setup=BLOCKS),
    idiom("BERT", ON_TOKENS, setup=BERT),
    idiom("an encoder", setup="""
        model = nn.Sequential(nn.Unflatten(1, (2, 4)), nn.TransformerEncoder(
            nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), 2), nn.Flatten(),
            nn.Linear(8, 4))
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        """),
]  # fmt: skip


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "dp"])
@pytest.mark.parametrize("case", RECOMPUTED, ids=str)
def test_checkpointing_leaves_the_numbers(case, strategy) -> None:
    result = compare(case, 2, strategy=strategy, checkpointing=True)
    assert not result.wrong, "\n".join(result.wrong)
    assert not result.notices - NOISY - {"dp"}


@pytest.mark.parametrize(("option", "calls"), [(False, 12), (True, 24)])
def test_blocks_are_recomputed(option, calls) -> None:
    namespace = notebook(BLOCKS)
    nbmgpu.run(CALLS + TRAIN, namespace, gpus=2, cpu=True, checkpointing=option)
    assert namespace["calls"] == calls
    assert "forward" not in vars(namespace["model"].blocks[0])
    assert not hasattr(type(namespace["model"].blocks[0]).forward, "__wrapped__")


def test_transformers_are_left_without_checkpoints() -> None:
    namespace = notebook(BERT)
    model = namespace["model"]
    before = {m: (set(vars(m)), len(m._forward_hooks)) for m in model.modules()}
    cell = ON_TOKENS + "on = model.bert.encoder.layer[0].gradient_checkpointing\n"
    nbmgpu.run(cell, namespace, gpus=2, cpu=True, checkpointing=True)
    assert namespace["on"]
    assert {m: (set(vars(m)), len(m._forward_hooks)) for m in model.modules()} == before
    assert not model.bert.encoder.layer[0].gradient_checkpointing


def test_a_model_without_blocks_is_named() -> None:
    run = nbmgpu.run(TRAIN, notebook(FLAT.format("")), gpus=2, cpu=True, checkpointing=True)
    assert "no-blocks" in run.view.notices


def test_blocks_are_outermost_and_have_no_batch_normalization() -> None:
    def part(*more):
        return nn.Sequential(nn.Linear(2, 2), *more)

    inner = nn.ModuleList([part(), part(nn.BatchNorm1d(2))])
    outer = nn.Sequential(nn.Linear(2, 2), part(), nn.Tanh())
    model = nn.ModuleDict({"inner": inner, "outer": outer})
    assert blocks(model) == [inner[0], outer[1]]


# ---------------------------------------------------------------- --precision


def weights(namespace) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in namespace["model"].parameters()])


def apart(a, b) -> float:
    """The largest difference of two notebooks' weights, relative to the largest weight."""
    return ((weights(a) - weights(b)).abs().max() / weights(b).abs().max()).item()


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "dp"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_is_close_to_one_device(precision, strategy) -> None:
    full, two = notebook(""), notebook("")
    start = weights(full).clone()
    options = {"cpu": True, "precision": precision}
    exec(TRAIN, full)
    nbmgpu.run(TRAIN, two, gpus=2, strategy=strategy, **options)
    one = notebook("")
    nbmgpu.run(TRAIN, one, gpus=1, **options)
    assert apart(two, one) <= 1e-2
    assert 0 < apart(two, full) <= 3e-2
    assert (weights(two) - start).abs().max() > 0.05
    assert two["model"].body.weight.dtype == torch.float32
    assert type(two["loss"].item()) is float
    assert two["loss"].dtype == torch.float32


def test_one_rank_is_close_to_one_device_under_the_same_autocast() -> None:
    cell = """
torch.set_num_threads(1)
for x, y in loader:
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)
    loss = F.cross_entropy(out.float(), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
    alone, shared, threads = notebook(""), notebook(""), torch.get_num_threads()
    exec(cell, alone)
    torch.set_num_threads(threads)
    plain = cell.replace('torch.autocast("cpu", torch.bfloat16)', "torch.enable_grad()")
    nbmgpu.run(plain, shared, gpus=1, cpu=True, precision="bf16")
    assert apart(alone, shared) <= 1e-2


def test_gradients_are_unscaled_in_the_cell() -> None:
    cell = """
norms = []
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    F.cross_entropy(model(x), y).backward()
    norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
    opt.step()
"""
    full, two = notebook(""), notebook("")
    exec(cell, full)
    nbmgpu.run(cell, two, gpus=2, cpu=True, precision="fp16")
    assert two["norms"] == pytest.approx(full["norms"], rel=2e-2)
    assert apart(two, full) <= 1e-2


def test_a_step_with_nan_is_skipped_on_all_ranks() -> None:
    cell = """
moved, finite = [], []
for i, (x, y) in enumerate(loader):
    before = model.head.bias.detach().clone()
    opt.zero_grad()
    (F.cross_entropy(model(x), y) * (1e36 if i in (1, 3) else 1.0)).backward()
    opt.step()
    moved.append(not torch.equal(before, model.head.bias))
"""
    namespace = notebook("")
    run = nbmgpu.run(cell, namespace, gpus=2, cpu=True, precision="fp16")
    assert namespace["moved"] == [True, False, True, False, True, True]
    assert run.results[1]["moved"] == namespace["moved"]
    assert weights(namespace).isfinite().all()


def test_a_scaler_of_the_cell_is_refused_with_fp16_and_allowed_with_bf16() -> None:
    cell = """
for x, y in loader:
    opt.zero_grad()
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    scaler.step(opt)
    scaler.update()
"""
    setup = "scaler = torch.amp.GradScaler('cpu')"
    with pytest.raises(StrategyError, match="GradScaler"):
        nbmgpu.run(cell, notebook(setup), gpus=2, cpu=True, precision="fp16")
    one, two = notebook(setup), notebook(setup)
    exec(cell, one)
    nbmgpu.run(cell, two, gpus=2, cpu=True, precision="bf16")
    assert apart(two, one) <= 3e-2


def test_a_closure_is_refused_with_fp16() -> None:
    cell = """
for x, y in loader:
    def closure():
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss
    opt.step(closure)
"""
    with pytest.raises(StrategyError, match="closure"):
        nbmgpu.run(cell, notebook(""), gpus=2, cpu=True, precision="fp16")


def test_fp32_disables_the_cells_autocast_and_is_noticed() -> None:
    inside = "    with torch.autocast('cpu', torch.bfloat16):\n            loss = "
    cell = TRAIN.replace("    loss = ", inside)
    full, two = notebook(""), notebook("")
    exec(TRAIN, full)
    run = nbmgpu.run(cell, two, gpus=2, cpu=True, precision="fp32")
    assert "autocast-off" in run.view.notices
    assert apart(two, full) <= 1e-6


# ---------------------------------------------------------------- --compile

COMPILED = [
    idiom("a model of the notebook"),
    idiom("batch normalisation", setup=CONV),
    idiom("BERT, its loss outside of what is compiled", ON_TOKENS, setup=BERT),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", COMPILED, ids=str)
def test_compiled_modules_have_the_numbers_of_others(case) -> None:
    options = {"sync_batchnorm": True} if "batch" in case.name else {}
    result = compare(case, 2, compile=True, **options)
    assert not result.wrong, "\n".join(result.wrong)
    assert result.ranks["model"]._compiled_call_impl is None


LOSS_INSIDE = """
class Whole(Net):
    def forward(self, x, y):
        return F.cross_entropy(super().forward(x), y)
model = Whole()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""


@pytest.mark.slow
def test_a_loss_in_compiled_code_is_refused() -> None:
    cell = TRAIN.replace("F.cross_entropy(model(x), y)", "model(x, y)")
    with pytest.raises(StrategyError, match="computes its loss itself"):
        nbmgpu.run(cell, notebook(LOSS_INSIDE), gpus=2, cpu=True, compile=True)


def test_without_a_compiler_the_cell_is_refused() -> None:
    cell = "import os\nos.environ['PATH'], os.environ['CXX'] = '', ''\n" + TRAIN
    with pytest.raises(StrategyError, match="needs a C\\+\\+ compiler"):
        nbmgpu.run(cell, notebook(""), gpus=2, cpu=True, compile=True)
