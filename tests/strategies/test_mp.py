"""mp: layers on two devices have the numbers of one, and leave no trace on the cell's objects.

The two devices are ``cpu:0`` and ``cpu:1``; see ``logical_devices``.
"""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from entry_points import installed
from idioms.architectures import CELLS
from idioms.comparison import assert_equal, compare, run_both
from idioms.idiom import TRAIN, Idiom, idiom
from idioms.model_parallelism import MODELS, TEXTS, TRAIN_MODEL
from idioms.notebook import notebook
from idioms.sources import ADAM, BATCH_NORM, CLOSURE, DROPOUT, before_step
from idioms.tables import BY_NAME
from logical_devices import DEVICES, HOST, SOURCE, SeparateDevices, model_parallel
from matrix_selection import sampled
from torch import nn

import nbmgpu
from nbmgpu import strategies
from nbmgpu.errors import OptionError, StrategyError
from nbmgpu.options.run_options import RunOptions
from nbmgpu.strategies import canonical
from nbmgpu.strategies.base import Unit
from nbmgpu.strategies.busy_time import BusyTimes
from nbmgpu.strategies.mp.device_map import Route, automatic_map, given_map
from nbmgpu.strategies.mp.placement import Placement

TWO_DEVICES = "mp_on_two_devices"


@pytest.fixture(autouse=True, scope="module")
def _two_devices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    site = tmp_path_factory.mktemp("site-packages")
    with installed(site, "two_devices", SOURCE, strategies.GROUP, {TWO_DEVICES: "TwoDevices"}):
        yield


# ----------------------------------------------------------------- in a notebook

DEEP = """
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Dropout(0.3),
                      nn.Linear(16, 16), nn.Dropout(0.3), nn.Tanh(), nn.Linear(16, 4))
"""
RESIDUAL = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
    def forward(self, x):
        return self.linear(x).relu_()

class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.blocks = nn.ModuleList(Block() for _ in range(5))
        self.head = nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros(()))
    def forward(self, x):
        self.calls += 1
        for block in self.blocks:
            x = x + self.scale * block(x)
        return self.head(x)
model = Residual()
"""
MOMENTUM = "opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)\n"
WARM = """
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
params, state = list(model.parameters()), model.state_dict()
"""
EVALUATE = """
model.eval()
with torch.no_grad():
    right = sum((model(x).argmax(1) == y).sum().item() for x, y in val_loader)
norms = [p.norm().item() for p in params]
"""

CASES = [
    idiom("batch normalization, dropout and in-place activations", setup=DEEP + ADAM),
    idiom("dropout", setup=DROPOUT),
    idiom("batch normalization", setup=BATCH_NORM),
    idiom("residual blocks", setup=RESIDUAL + ADAM),
    idiom("an optimizer with states, captured parameters, evaluation", TRAIN + EVALUATE,
        setup=RESIDUAL + ADAM + WARM),
    idiom("clipped gradients", before_step(
        "losses.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05).item())"),
        setup=DEEP + MOMENTUM, curve=False),
    idiom("moved to the device", "device = 'cpu'\nmodel.to(device)\n" + TRAIN,
        setup=RESIDUAL + MOMENTUM),
    idiom("a layer called by the cell", TRAIN.replace(
        "model(x), y)", "model(x), y) + 0.1 * model[4](model[0](x)).square().mean()"),
        setup=DEEP + MOMENTUM),
    *(idiom(name, TRAIN_MODEL, setup=MODELS[name] + TEXTS, rank_local="loss")
        for name in ("gpt2", "llama", "llama with dropout", "t5", "encoder")),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_numbers_are_those_of_one_device(case: Idiom) -> None:
    result = assert_equal(case, 1, notices="model-parallel idle-devices", strategy=TWO_DEVICES)
    # The gradient of T5's encoder is a sum over layers, in another order.
    assert result.error <= (1e-6 if case.name == "t5" else 0)
    assert "on 2 devices: cpu:0 has " in result.run.view.notices["model-parallel"].text
    assert "pp overlaps them" in result.run.view.notices["idle-devices"].text


@pytest.mark.parametrize("options", [{"accumulate": 2}, {"clip": 0.1}, {"checkpointing": True},
                                     {"precision": "bf16"}], ids=str)  # fmt: skip
def test_options(options: dict[str, Any]) -> None:
    setup = RESIDUAL + MOMENTUM
    spread, plain = (
        run_both(TRAIN, setup, 1, strategy=strategy, **options) for strategy in (TWO_DEVICES, "mp")
    )
    assert spread.run.view.notices.keys() >= {"idle-devices"}
    for name in ("model", "losses"):
        torch.testing.assert_close(
            _numbers(spread.ranks[name]), _numbers(plain.ranks[name]), rtol=0, atol=0
        )


def _numbers(value: Any) -> Any:
    return list(value.state_dict().values()) if isinstance(value, nn.Module) else value


REFUSED = {name for name in BY_NAME if "LBFGS" in name} | {"torch.func.grad, a manual step"}


@pytest.mark.parametrize(
    "case",
    sampled(zip([*BY_NAME.values(), *CELLS], strict=True), 31, "nbmgpu/strategies/mp"),
)
def test_every_idiom(case: Idiom) -> None:
    if case.name in REFUSED:
        with pytest.raises(StrategyError):
            compare(case, 1, strategy=TWO_DEVICES)
    else:
        assert_equal(case, 1, strategy=TWO_DEVICES)


GENERATE = """
model.eval()
tokens = model.generate(ids[:3, :4], max_new_tokens=5, do_sample=False, pad_token_id=0)
"""


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generated_tokens_without_an_optimizer(name: str) -> None:
    setup = MODELS[name] + "ids = torch.randint(4, 40, (22, 7))\n"
    result = run_both(GENERATE, setup, 1, strategy=TWO_DEVICES)
    assert torch.equal(result.alone["tokens"], result.ranks["tokens"])
    assert "idle-devices" in result.notices


TRACES = """
hooks = ("_hf_hook", "_old_forward", "hf_device_map")
before = dict(model.__dict__)
spread = model(X)
inside = copy.deepcopy(model), copy.deepcopy(model)(X)
"""


def test_objects_are_the_same_and_have_no_traces() -> None:
    namespace = notebook(RESIDUAL + ADAM + WARM)
    model, params, opt = namespace["model"], namespace["params"], namespace["opt"]
    states = {id(p): id(opt.state[p]["exp_avg"]) for p in params}
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    addresses = [p.data_ptr() for p in params]
    nbmgpu.run(TRACES + TRAIN, namespace, gpus=2, cpu=True, strategy=TWO_DEVICES)
    assert namespace["model"] is model
    assert all(a is b for a, b in zip(params, model.parameters(), strict=True))
    assert all(a is b for a, b in zip(params, opt.param_groups[0]["params"], strict=True))
    assert [p.data_ptr() for p in params] == addresses
    assert {id(p): id(opt.state[p]["exp_avg"]) for p in params} == states
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    assert torch.equal(namespace["state"]["head.weight"], model.head.weight)
    assert torch.equal(namespace["inside"][1], namespace["spread"])


TRAINER = """
import datasets
from transformers import Trainer, TrainingArguments
rows = [dict(input_ids=i, labels=i) for i in torch.randint(4, 40, (22, 7))]
trainer = Trainer(model, TrainingArguments("out", num_train_epochs=2, learning_rate=3e-3,
    report_to="none", logging_steps=1, save_strategy="no", use_cpu=True,
    per_device_train_batch_size=5, max_grad_norm=0.1{more}), train_dataset=rows)
"""


@pytest.mark.filterwarnings("ignore")  # of transformers, in this process
@pytest.mark.parametrize(
    ("built_in", "more"),
    sampled(
        itertools.product(
            ("kernel", "cell"), ("", ", gradient_checkpointing=True, gradient_accumulation_steps=2")
        ),
        3,
        "nbmgpu/strategies/mp",
        "nbmgpu/rank/frameworks",
    ),
)
def test_the_trainer_of_hugging_face(more: str, built_in: str) -> None:
    setup, cell = MODELS["llama"], "trainer.train()\nmetrics = trainer.evaluate(rows)\n"
    build = TRAINER.replace("{more}", more)
    setup, cell = (setup + build, cell) if built_in == "kernel" else (setup, build + cell)
    result = run_both(cell, setup, 1, strategy=TWO_DEVICES)
    assert result.difference("model") == 0
    assert result.ranks["metrics"]["eval_loss"] == result.alone["metrics"]["eval_loss"]
    assert {"model-parallel", "idle-devices"} <= result.notices


LIGHTNING = """
import lightning.pytorch as pl
class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 4)
    def training_step(self, batch, index):
        return F.cross_entropy(self.net(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
pl.Trainer(accelerator="cpu", logger=False, max_epochs=1).fit(Module(), loader)
"""


@pytest.mark.parametrize("strategy", ["mp", TWO_DEVICES])
def test_lightning_is_refused(strategy: str) -> None:
    with pytest.raises(StrategyError, match="moves the whole model to one device"):
        nbmgpu.run(LIGHTNING, notebook(), gpus=2, cpu=True, strategy=strategy)


# ----------------------------------------------------------- without several GPUs


@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_mp_on_cpu_is_one_device_and_is_noticed(case: Idiom) -> None:
    result = assert_equal(case, notices="model-parallel", strategy="mp")
    assert result.error == 0
    assert "nothing is spread" in result.run.view.notices["model-parallel"].text
    assert result.run.record.world_size == 1


@pytest.mark.parametrize(
    "alias", ["model_parallel", "naive_model_parallel", "device_map", "device-map-auto",
              "dispatch_model"],
)  # fmt: skip
def test_other_names(alias: str) -> None:
    assert canonical(alias) == "mp"


@pytest.mark.parametrize(
    ("options", "reason", "instead"),
    [
        ({"compile": True}, "each graph would end", "--strategy fsdp --compile"),
        ({"precision": "fp16"}, "bf16 needs no scaling", "--strategy ddp --precision fp16"),
        ({"sync_batchnorm": True}, "of the whole batch already", "--strategy mp"),
        ({"mesh": ("dp=2",)}, "it is one process", "--strategy tp"),
        ({"microbatches": 2}, "only pp runs parts of a batch", "--strategy pp --microbatches 2"),
        ({"cpu_offload": True}, "no shards to offload", "--strategy fsdp --cpu-offload"),
    ],
    ids=str,
)
def test_options_are_refused(options: dict[str, Any], reason: str, instead: str) -> None:
    line = f"--strategy mp {_flags(options)}"
    with pytest.raises(OptionError) as caught:
        RunOptions.parse(line)
    assert reason in str(caught.value)
    assert instead in str(caught.value).rpartition("Try: ")[2]


def _flags(options: dict[str, Any]) -> str:
    ((name, value),) = options.items()
    text = "" if value is True else f" {value[0] if isinstance(value, tuple) else value}"
    return f"--{name.replace('_', '-')}{text}"


def test_a_model_that_is_one_layer_is_noticed() -> None:
    result = run_both(TRAIN, "model = nn.Linear(8, 4)\n" + MOMENTUM, 1, strategy=TWO_DEVICES)
    assert result.difference("model") == 0
    assert result.notices == {"not-spread"}


def test_lbfgs_is_refused() -> None:
    setup = RESIDUAL + "opt = torch.optim.LBFGS(model.parameters())\n"
    with pytest.raises(StrategyError, match=r"LBFGS .* on 2 devices[\s\S]*Adam or SGD"):
        nbmgpu.run(CLOSURE, notebook(setup), cpu=True, strategy=TWO_DEVICES)


# ------------------------------------------------------------------ in this process


def sequence(*sizes: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(sizes)))


def names_by_device(root: nn.Module, devices: int = 2) -> list[list[str]]:
    chosen = [torch.device("cpu", index) for index in range(devices)]
    parts = automatic_map(root, chosen, lambda tensor: None).parts
    return [[name for name, at in parts if at == device] for device in chosen]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16) for _ in range(4))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight


def test_layers_are_balanced_by_bytes_in_the_order_of_registration() -> None:
    assert names_by_device(sequence(8, 8, 8, 8, 8)) == [["0", "1"], ["2", "3"]]
    assert names_by_device(sequence(8, 40, 8, 8, 8)) == [["0"], ["1", "2", "3"]]
    assert names_by_device(sequence(8, 8, 8, 8), 3) == [["0"], ["1"], ["2"]]
    assert names_by_device(nn.Linear(8, 8)) == [[""], []]


def test_layers_are_whole_and_tied_layers_stay_together() -> None:
    first, second = names_by_device(Tied())
    assert first == ["embedding", "layers.0", "layers.1", "head"]
    assert second == ["layers.2", "layers.3", "norm"]


def test_a_large_element_of_a_sequence_is_divided() -> None:
    model = nn.Sequential(Tied(), nn.Linear(20, 20))
    assert names_by_device(model)[1][:2] == ["0.layers.2", "0.layers.3"]


def test_no_split_modules_of_hugging_face_are_whole() -> None:
    config = transformers.LlamaConfig(
        vocab_size=4, hidden_size=16, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2,
    )  # fmt: skip
    names = names_by_device(transformers.LlamaForCausalLM(config))
    assert "model.layers.0" in itertools.chain(*names)


def test_the_map_of_hugging_face_is_used() -> None:
    root = sequence(8, 8, 8)
    routes = given_map(root, {"0": 1, "1": "cpu:0"}, "cpu").routes
    assert [routes[layer].device for layer in root] == [DEVICES[1], DEVICES[0]]
    with pytest.raises(StrategyError, match="offloads layers to disk"):
        given_map(root, {"0": 0, "1": "disk"}, "cuda")


def test_a_model_inside_of_another_keeps_its_map() -> None:
    inner: Any = sequence(8, 8, 8)
    inner.hf_device_map = {"0": "cpu:1", "1": "cpu:0"}
    model = nn.Sequential(inner, nn.Linear(8, 40))
    with SeparateDevices():
        strategy = model_parallel()
        assert model(torch.ones(2, 8)).device == HOST
        assert [layer.weight.device for layer in inner] == [DEVICES[1], DEVICES[0]]
        strategy.release()


def test_parameters_shared_with_two_devices_are_refused() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = sequence(8, 8, 8)
            self.last = nn.Linear(8, 8)
            self.last.weight, self.last.bias = self.layers[0].weight, self.layers[1].bias

    with pytest.raises(StrategyError, match="shares parameters with layers on cpu:0 and cpu:1"):
        names_by_device(Shared())


def test_tensors_move_in_place_and_return_to_their_memory() -> None:
    model = Tied()
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    sum(p.square().sum() for p in model.parameters()).backward()
    opt.step()
    weight = model.layers[3].linear1.weight
    state = opt.state[weight]
    tensors = [weight, weight.grad, state["exp_avg"], state["step"]]
    addresses = [t.data_ptr() for t in tensors]
    values = [t.clone() for t in tensors]
    view = weight.detach()

    with SeparateDevices():
        strategy = model_parallel()
        strategy.prepare([Unit([model], [opt])])
        assert [t.device for t in tensors] == [DEVICES[1]] * 3 + [HOST]
        assert model.head.weight is model.embedding.weight
        assert model.embedding.weight.device == DEVICES[0]
        with torch.no_grad():
            weight.add_(1)
        strategy.finish()
        strategy.release()
        assert {t.device for t in tensors} == {HOST}
    assert [weight.grad is tensors[1], state["exp_avg"] is tensors[2]] == [True, True]
    assert weight.data_ptr() == addresses[0]
    torch.testing.assert_close(weight, values[0] + 1)
    torch.testing.assert_close(view, values[0] + 1)
    assert all(torch.equal(t, v) for t, v in zip(tensors[1:], values[1:], strict=True))
    assert not any(
        {"forward", "_hf_hook", "_old_forward"} & vars(m).keys() for m in model.modules()
    )


def test_a_move_to_the_device_spreads_the_model() -> None:
    with SeparateDevices():
        strategy = model_parallel()
        model = sequence(8, 8, 8)
        assert model.to("cpu:0", torch.float64) is model
        assert [layer.weight.device for layer in model] == list(DEVICES)
        assert model[1].weight.dtype == torch.float64
        strategy.release()
        assert {p.device for p in model.parameters()} == {DEVICES[0]}
        assert nn.Linear(1, 1).to("cpu:1").weight.device == DEVICES[1]


def test_a_tensor_with_other_data_goes_back_to_the_same_device() -> None:
    with SeparateDevices():
        placement, tensor = Placement(), torch.ones(3)
        placement.put(tensor, DEVICES[1], DEVICES[0])
        tensor.data = tensor.data.double()
        placement.put(tensor, DEVICES[1])
        placement.restore([])
        assert (tensor.device, tensor.dtype) == (DEVICES[0], torch.float64)


BATCH = torch.randint(3, 40, (2, 8), generator=torch.Generator().manual_seed(0))
HUGGING_FACE = {
    "BertForSequenceClassification": {"labels": BATCH[:, 0] % 2},
    "BertForMaskedLM": {"labels": BATCH},
    "GPT2LMHeadModel": {"labels": BATCH},
    "LlamaForCausalLM": {"labels": BATCH},
    "T5ForConditionalGeneration": {"labels": BATCH},
    "BartForConditionalGeneration": {"labels": BATCH},
}
SIZES = {
    "vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3,
    "num_attention_heads": 2, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2,
    "decoder_start_token_id": 0, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32, "max_position_embeddings": 32, "bos_token_id": 0, "eos_token_id": 1,
    "pad_token_id": 0, "forced_eos_token_id": None,
}  # fmt: skip
"""Of the configurations of all of these models."""


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_no_operator_takes_tensors_of_two_devices(name: str) -> None:
    cls = getattr(transformers, name)
    model = cls(cls.config_class(**SIZES)).eval()
    expected = model(input_ids=BATCH, **HUGGING_FACE[name])
    notices: dict[str, str] = {}
    with SeparateDevices():
        strategy = model_parallel(notices)
        output = model(input_ids=BATCH, **HUGGING_FACE[name])
        assert {p.device for p in model.parameters()} == set(DEVICES)
        assert (output.loss.device, output.logits.device) == (HOST, HOST)
        if model.can_generate() and name != "BertForMaskedLM":
            model.generate(input_ids=BATCH, max_new_tokens=3, do_sample=False)
        strategy.release()
    assert torch.equal(output.logits, expected.logits)
    assert "on 2 devices" in notices["model-parallel"]


def test_code_between_layers_gets_tensors_on_one_device() -> None:
    namespace = notebook(RESIDUAL)
    model, x = namespace["model"], namespace["X"]
    expected = model(x)
    with SeparateDevices():
        strategy = model_parallel()
        assert torch.equal(model(x), expected)
        with pytest.raises(RuntimeError) as caught:
            model.blocks[4](x) @ model.blocks[4].linear.weight
        assert "uses a parameter without calling its layer" in strategy.explain(caught.value)
        strategy.release()
    assert strategy.explain(ValueError("another")) == ""


def test_writes_to_inputs_reach_them() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), InPlace()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.first(x)
            result: torch.Tensor = self.second(hidden) + hidden
            return result

    class InPlace(nn.Linear):
        def __init__(self) -> None:
            super().__init__(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.relu_())

    model, x = Writes(), torch.randn(3, 8)
    expected = model(x)
    expected.sum().backward()
    grads = [p.grad for p in model.parameters()]
    model.zero_grad()
    strategy = model_parallel()
    assert torch.equal(model(x), expected)
    model(x).sum().backward()
    strategy.release()
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        assert torch.equal(parameter.grad, grad)


def test_a_spread_model_can_be_pickled_and_copied() -> None:
    model = sequence(8, 8, 8)
    strategy = model_parallel()
    x = torch.randn(3, 8)
    expected = model(x)
    again = [pickle.loads(pickle.dumps(model)), copy.deepcopy(model)]
    assert all(torch.equal(other(x), expected) for other in again)
    strategy.release()


def test_a_new_layer_is_put_on_a_device() -> None:
    model = sequence(8, 8, 8)
    strategy = model_parallel()
    x = torch.randn(3, 8)
    model(x)
    model.append(nn.Linear(8, 4))
    assert F.relu(model(x)).shape == (3, 4)
    strategy.release()


def test_a_model_that_the_cell_compiles() -> None:
    model = sequence(8, 8, 8)
    x = torch.randn(3, 8)
    expected = model(x)
    strategy = model_parallel()
    compiled = torch.compile(model, backend="eager")
    assert torch.equal(compiled(x), expected)
    assert torch.equal(compiled(x), expected)
    strategy.release()


def test_lazy_modules_are_spread_when_they_have_shapes() -> None:
    model = nn.Sequential(nn.LazyLinear(8), nn.LazyLinear(8))
    notices: dict[str, str] = {}
    strategy = model_parallel(notices)
    model(torch.randn(3, 8))
    assert not notices
    model(torch.randn(3, 8))
    assert "on 2 devices" in notices["model-parallel"]
    strategy.release()


def test_shares_of_time() -> None:
    times = BusyTimes(DEVICES)
    assert times.shares() == []
    start = times.mark(HOST)
    times.add_call(DEVICES[0], start)
    times.add_call(DEVICES[1], start)
    times.add_pass(DEVICES[0], start)
    shares = times.shares()
    assert len(shares) == 2
    assert all(0 <= share <= 1 for share in shares)


def test_outputs_return_only_to_code_that_uses_them() -> None:
    routes = automatic_map(sequence(8, 8, 8, 8), DEVICES, lambda tensor: None).routes
    root, *layers = routes.values()
    assert root == Route(DEVICES[0], enters=True, returns=True)
    assert {layer.returns for layer in layers} == {False}
    routes = automatic_map(Tied(), DEVICES, lambda tensor: None).routes
    assert {route.returns for route in routes.values() if route.enters} == {True}
