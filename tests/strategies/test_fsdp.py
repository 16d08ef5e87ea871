"""fsdp and zero2: numbers of one device, and nothing of FSDP2 to be seen on the cell's objects."""

from __future__ import annotations

import pytest
import torch
from numerics.idiom import TRAIN, Idiom, compare, execute, idiom, notebook
from torch import nn

import nbmgpu
from nbmgpu.errors import StrategyError

BOTH = pytest.mark.parametrize("strategy", ["fsdp", "zero2"])
ADAM = "opt = torch.optim.AdamW(model.parameters(), lr=1e-2)\n"
DEEP = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))

class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.features(x))

    def features(self, x):
        for block in self.blocks:
            x = block(x)
        return x

model = Deep()
opt = torch.optim.AdamW(model.parameters(), lr=1e-2, amsgrad=True)
"""


def stepping(line: str, forward: str = "model(x)") -> str:
    """Return a loop with ``line`` before each step."""
    return f"""
for x, y in loader:
    opt.zero_grad()
    loss = F.cross_entropy({forward}, y)
    loss.backward()
    {line}
    opt.step()
    losses.append(loss.item())
"""


def check(case: Idiom, strategy: str, notices: str = "", ranks: int = 2, **options: object) -> None:
    """Expect the numbers of one device, and no notices but ``notices``."""
    result = compare(case, ranks, strategy=strategy, **options)
    assert not result.wrong, "\n".join(result.wrong)
    assert result.notices - {"rank-0-values"} == set(notices.split())


UNITS = [
    idiom("units", setup=DEEP),
    idiom("a method that is not forward",
        stepping("", "model.head(model.features(x))"), setup=DEEP),
    idiom("warm states", setup=DEEP + """
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
"""),
    idiom("evaluation between epochs", TRAIN.replace(
        "    for x", "    with torch.no_grad():\n"
        "        losses.append(model.eval()(X).mean().item())\n"
        "    model.train()\n    for x"), setup=DEEP, curve=False),
    idiom("two forwards, then one backward", stepping("", "model(x) + model(x * 0.5)"), setup=DEEP),
    idiom("checkpoint of each block", TRAIN, setup=DEEP.replace(
        "x = block(x)", "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)")
        .replace("class Block", "import torch.utils.checkpoint\nclass Block")),
    idiom("clipped, on an SGD without momentum", stepping(
        "losses.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05, 1.0).item())"),
        setup=DEEP + "opt = torch.optim.SGD(model.parameters(), lr=0.1)\n", curve=False),
]  # fmt: skip


@BOTH
@pytest.mark.parametrize("case", UNITS, ids=str)
def test_units_of_their_own(case: Idiom, strategy: str) -> None:
    check(case, strategy, fsdp_units=("Block",))


@BOTH
def test_states_and_parameters_in_the_memory_of_the_host(strategy: str) -> None:
    check(UNITS[2], strategy, fsdp_units=("Block",), cpu_offload=True)


def test_one_rank_and_three() -> None:
    check(UNITS[0], "fsdp", ranks=1)
    check(UNITS[0], "fsdp", ranks=3, fsdp_units=("Block",))


def test_a_class_that_is_nowhere_is_named_with_those_that_are() -> None:
    with pytest.raises(StrategyError, match=r"no module is a Blok\.[\s\S]*Block, Deep, Linear"):
        check(UNITS[0], "fsdp", fsdp_units=("Blok",))


def test_bf16_trains_near_to_fp32() -> None:
    near = idiom("bf16", setup=DEEP, rtol=5e-2, atol=5e-2)
    result = compare(near, 2, strategy="fsdp", precision="bf16", fsdp_units=("Block",))
    assert result.error < 5e-2
    weight = result.ranks["model"].head.weight
    assert weight.dtype == torch.float32


# ------------------------------------------------------------------- what the cell looks at

LOOKS = [
    idiom("parameters captured before", "params = list(model.parameters())\nseen = []\n" + stepping(
        "seen.append(sum(p.norm().item() for p in params) + params[0].grad.abs().max().item())")),
    idiom("an average of captured weights", "with torch.no_grad():\n"
        "    slow = [p.clone() for p in model.parameters()]\n" + stepping(
        "[s.lerp_(p.detach(), 0.1) for s, p in zip(slow, model.parameters())]")),
    idiom("values written in all ways", """
        with torch.no_grad():
            model.body.weight[0] = 0.5
            model.body.weight.data[1, :3].fill_(0.25)
            model.head.weight.T[2] += 1
            model.head.bias.copy_(torch.arange(4.0))
            nn.init.constant_(model.body.bias, 0.1)
            model.head.weight.view(-1)[::7] = 0
        """ + TRAIN.replace("\n", "\n        ") + """
        with torch.no_grad():
            row = model.body.weight[3]
            row.mul_(2)
            model.body.weight[0] = row
            model.head.weight.data.view(-1)[:5].zero_()
            model.head.bias.data = model.head.bias.data * 2
            numbers = model.head.weight.detach().cpu().numpy().sum().item()
            flat = nn.utils.parameters_to_vector(model.parameters())
            nn.utils.vector_to_parameters(flat * 0.9, model.parameters())
        """, shares="row", curve=False),
    idiom("a state_dict from before follows", "before = model.state_dict()\n" + TRAIN +
        "total = sum(v.sum().item() for v in before.values())\n"),
    idiom("a state_dict and a gradient from after, kept", TRAIN + "late = model.state_dict()\n"
        "grad, states = model.body.weight.grad, opt.state_dict()\n", setup=ADAM),
    idiom("the best state_dict, deepcopied and loaded", """
        for epoch in range(2):
            for x, y in loader:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
            if epoch == 0:
                best, warm = copy.deepcopy(model.state_dict()), copy.deepcopy(opt.state_dict())
        with torch.no_grad():
            losses.append(model(X).sum().item())
            model.load_state_dict(best); opt.load_state_dict(warm)
            losses.append(model(X).sum().item())
        """, setup=ADAM, curve=False),
    idiom("a deepcopy in mid-training", TRAIN + "twin = copy.deepcopy(model)\n" + TRAIN +
        "other = F.cross_entropy(twin(X), Y).item()\nkind = type(twin).__name__\n"),
    idiom("gradients changed by hand", stepping(
        "for p in model.parameters(): p.grad = p.grad.sign() * 0.01; p.grad.mul_(0.5)")),
    idiom("backward for some parameters", stepping("").replace(
        "loss.backward()", "loss.backward(inputs=list(model.head.parameters()))")),
    idiom("functional_call with other values", """
        for x, y in loader:
            fast = {k: v * 0.5 for k, v in model.named_parameters()}
            loss = F.cross_entropy(torch.func.functional_call(model, fast, (x,)), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, shares="fast"),
    idiom("a step before the next forward sees it", stepping("").replace(
        "    losses", "    with torch.no_grad(): losses.append(model(X).sum().item())\n    losses"),
        curve=False),
    idiom("type(m) is nn.Linear", "names = [n for n, m in model.named_modules() "
        "if type(m) is nn.Linear]\n" + TRAIN + "names += [n for n, m in model.named_modules() "
        "if type(m) is nn.Linear and isinstance(m.weight, nn.Parameter)]\n"),
    idiom("a penalty in the loss", stepping("").replace(
        "model(x), y)", "model(x), y) + 1e-2 * sum(p.pow(2).sum() for p in model.parameters())")),
    idiom("a GradScaler, infinite on one rank", """
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 8, growth_interval=3)
        for i, (x, y) in enumerate(loader):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss = loss + (0 if i != 2 else (X[-1:].sum() * float("inf") * model(x[-1:])).mean())
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        scale = scaler.get_scale()
        """, shares="loss", curve=False),
]  # fmt: skip


@BOTH
@pytest.mark.parametrize("case", LOOKS, ids=str)
def test_what_the_cell_looks_at_is_whole(case: Idiom, strategy: str) -> None:
    result = compare(case, 2, strategy=strategy)
    assert not result.wrong, "\n".join(result.wrong)


NORMED = """
class Normed(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.norm() * p.grad / (p.grad.norm() + 1e-6))
opt = Normed(model.parameters(), 0.1)
"""


@BOTH
def test_an_optimizer_that_looks_at_norms_steps_on_whole_parameters(strategy: str) -> None:
    check(idiom("a trust ratio", setup=NORMED), strategy, "whole-steps-Normed")


FACTORED = """
class Factored(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.dim() == 2 and min(p.shape) >= 8:
                    columns = p.grad.square().mean(0, keepdim=True).sqrt()
                    p.sub_(group["lr"] * p.grad / (columns + 1e-3))
                else:
                    p.sub_(group["lr"] * p.grad)
opt = Factored(model.parameters(), 0.01)
"""


@BOTH
def test_an_optimizer_that_looks_at_large_matrices_steps_on_whole_parameters(strategy: str) -> None:
    check(idiom("factored", setup=FACTORED), strategy, "whole-steps-Factored")


@BOTH
def test_a_hook_on_a_sharded_parameter_is_refused(strategy: str) -> None:
    cell = TRAIN + "model.body.weight.register_hook(print)\n"
    with pytest.raises(StrategyError, match="hook"):
        check(idiom("a hook", cell), strategy)


@BOTH
def test_ranks_that_run_different_modules_are_refused(strategy: str) -> None:
    cell = stepping("", "torch.cat([model.blocks[int(r[0] > 0)](r[None]) for r in x])[:, :4]")
    with pytest.raises(StrategyError, match="Ranks run different modules"):
        check(idiom("routing", cell, setup=DEEP), strategy, fsdp_units=("Block",))


@BOTH
@pytest.mark.parametrize("leave", ["continue", "break"])
def test_a_rank_that_skips_a_backward_pass_ends_the_run_at_once(strategy: str, leave: str) -> None:
    # Only rank 0 has the first sample in its shard.
    skip = f"if (x == X[0]).all(1).any().item(): {leave}\n    loss.backward()"
    cell = stepping("").replace("loss.backward()", skip)
    with pytest.raises(StrategyError, match="different numbers of steps"):
        check(idiom("a skipped step", cell), strategy, timeout=100)


@BOTH
def test_evaluation_in_inference_mode_between_epochs(strategy: str) -> None:
    evaluation = "    with torch.inference_mode(): losses.append(model.eval()(X).mean().item())\n"
    cell = TRAIN.replace("    for x", evaluation + "    model.train()\n    for x")
    check(idiom("inference mode", cell, setup=DEEP, curve=False), strategy)


@BOTH
def test_running_statistics_are_alike_on_all_ranks(strategy: str) -> None:
    setup = "model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))\n" + ADAM
    cell = TRAIN + "with torch.no_grad(): out = [model.eval()(X).sum().item()]\n"
    namespace = notebook(setup)
    run = nbmgpu.run(cell, namespace, gpus=2, cpu=True, strategy=strategy)
    assert run.results[0]["out"] == run.results[1]["out"]


# ------------------------------------------------------------------- what comes back


@BOTH
def test_nothing_of_fsdp_is_left_on_the_objects(strategy: str) -> None:
    namespace = notebook(DEEP)
    model, optimizer = namespace["model"], namespace["opt"]
    before = {id(m): set(vars(m)) for m in model.modules()}
    parameters = list(model.parameters())
    nbmgpu.run(TRAIN, namespace, gpus=2, cpu=True, strategy=strategy, fsdp_units=("Block",))
    assert namespace["model"] is model
    assert all(p is q for p, q in zip(parameters, model.parameters(), strict=True))
    assert all(p is q for p, q in zip(parameters, optimizer.param_groups[0]["params"], strict=True))
    assert {type(p) for p in parameters} == {nn.Parameter}
    assert all(p.grad is not None and p.grad.shape == p.shape for p in parameters)
    for module in model.modules():
        assert set(vars(module)) == before[id(module)]
        assert "FSDP" not in type(module).__name__
        assert not module._forward_pre_hooks
        assert not module._forward_hooks
    states = [value for state in optimizer.state.values() for value in state.values()]
    assert {type(value) for value in states} == {torch.Tensor}


@BOTH
def test_checkpoints_written_in_the_cell_load_into_a_plain_model(strategy, tmp_path) -> None:
    saving = (
        TRAIN
        + f"""
torch.save(model.state_dict(), r"{tmp_path}/weights.pt")
torch.save(opt.state_dict(), r"{tmp_path}/states.pt")
torch.save(nn.Sequential(model.head, nn.ReLU()), r"{tmp_path}/part.pt")
"""
    )
    namespace = notebook(DEEP)
    execute("sizes = {k: v.shape for k, v in model.state_dict().items()}", namespace)
    nbmgpu.run(saving, namespace, gpus=2, cpu=True, strategy=strategy, fsdp_units=("Block",))
    weights = torch.load(tmp_path / "weights.pt")
    assert {type(w) for w in weights.values()} == {torch.Tensor}
    for name, value in namespace["model"].state_dict().items():
        assert torch.equal(weights[name], value)
    part = torch.load(tmp_path / "part.pt", weights_only=False)
    assert type(part[0].weight) is nn.Parameter
    assert torch.equal(part[0].weight, namespace["model"].head.weight)
    states = torch.load(tmp_path / "states.pt")["state"]
    ours = namespace["opt"].state_dict()["state"]
    assert all(torch.equal(states[i][k], v) for i, s in ours.items() for k, v in s.items())


MEASURE = """
import gc
def private():
    '''Bytes of tensors that this rank has, without what is mapped from the bundle.'''
    gc.collect()
    storages = {}
    for t in gc.get_objects():
        if type(t).__module__.startswith("nbmgpu") or not issubclass(type(t), torch.Tensor):
            continue
        if hasattr(t, "to_local"):
            t = t.to_local()
        if t.numel() and t.untyped_storage().resizable():
            storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
    return sum(storages.values())

model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
                        for _ in range(4)], nn.Linear(256, 4))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
whole = sum(p.numel() for p in model.parameters()) * 4
loader = DataLoader(TensorDataset(torch.randn(8, 256), Y[:8]), batch_size=4)
start = private()
for x, y in loader:
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
del loss
had = private() - (start - whole)
"""


@BOTH
def test_each_rank_holds_its_share_of_parameters_gradients_and_states(strategy: str) -> None:
    namespace = notebook("")
    run = nbmgpu.run(MEASURE, namespace, gpus=2, cpu=True, strategy=strategy)
    for values in run.results.values():
        had, whole = values["had"], values["whole"]
        # Parameters, gradients and two moments; half of each, and some slack.
        assert had < 0.55 * 4 * whole, f"{had / whole:.2f} of the parameters' bytes, 2 expected"


MODELS = {
    "BERT": ("BertForSequenceClassification", "BertConfig", "num_labels=4"),
    "GPT-2": ("GPT2ForSequenceClassification", "GPT2Config", "num_labels=4, pad_token_id=0"),
    "Llama": ("LlamaForSequenceClassification", "LlamaConfig",
              "num_labels=4, pad_token_id=0, intermediate_size=32, num_key_value_heads=2"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_transformers_are_sharded_by_their_own_blocks(name: str) -> None:
    model, config, extra = MODELS[name]
    setup = f"""
from transformers import {model}, {config}
config = {config}(vocab_size=40, {extra}, **{{
    "{"n_embd" if name == "GPT-2" else "hidden_size"}": 16,
    "{"n_layer" if name == "GPT-2" else "num_hidden_layers"}": 2,
    "{"n_head" if name == "GPT-2" else "num_attention_heads"}": 2,
}})
for key in ("attn_pdrop", "embd_pdrop", "resid_pdrop", "attention_probs_dropout_prob",
            "hidden_dropout_prob"):
    setattr(config, key, 0.0)
model = {model}(config)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
words = torch.randint(1, 40, (20, 6))
loader = DataLoader(TensorDataset(words, Y[:20]), batch_size=8)
"""
    cell = """
for x, y in loader:
    out = model(input_ids=x, labels=y)
    opt.zero_grad()
    out.loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    losses.append(out.loss.item())
generated = model.config.num_labels
"""
    check(idiom(name, cell, setup=setup), "fsdp")


@BOTH
def test_after_a_failure_parameters_and_states_are_those_from_before(strategy: str) -> None:
    namespace = notebook(UNITS[2].setup)
    before = {k: v.clone() for k, v in namespace["model"].state_dict().items()}
    moments = [s["exp_avg"].clone() for s in namespace["opt"].state.values()]
    with pytest.raises(ZeroDivisionError):
        nbmgpu.run(TRAIN + "1 / 0", namespace, gpus=2, cpu=True, strategy=strategy)
    for name, value in namespace["model"].state_dict().items():
        assert torch.equal(value, before[name])
    for state, moment in zip(namespace["opt"].state.values(), moments, strict=True):
        assert torch.equal(state["exp_avg"], moment)
    assert "unfinished" in nbmgpu.last_run.view.notices


@pytest.mark.slow
def test_compiled_code_ends_and_begins_at_units() -> None:
    check(UNITS[0], "fsdp", fsdp_units=("Block",), compile=True)
