"""The results of ``advise``: the recommendation, its reason and the line."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nbmgpu
from nbmgpu.advisor.advice import Advice
from nbmgpu.advisor.model_advisor import ModelAdvisor
from nbmgpu.advisor.request import AdviceRequest
from nbmgpu.devices.nvidia import Gpu
from nbmgpu.devices.probe import Machine
from nbmgpu.errors import OptionError
from nbmgpu.options.run_options import RunOptions
from nbmgpu.strategies import strategy_names

GB = 1e9


def blocks(width=1024, count=12):
    with torch.device("meta"):
        return nn.Sequential(*(nn.Linear(width, width) for _ in range(count)))


def advise_for(model, gpus, memory, batch=None, **more):
    rows = torch.zeros(8 * gpus, 1024, device="meta") if batch is None else batch
    optimizer = torch.optim.Adam(model.parameters())
    return nbmgpu.advise(model, optimizer, rows, gpus=gpus, memory=memory, **more)


def test_ddp_is_recommended_if_it_fits():
    advice = advise_for(blocks(), 4, "80 GB")
    assert advice.recommended == "ddp"
    assert advice.row("ddp").fits == "fits"
    assert advice.line == "%%mgpu --strategy ddp --gpus 4"
    assert "with ddp nothing is sharded" in advice.reason


def test_the_simplest_strategy_that_fits_is_recommended():
    model = blocks(4096, 24)  # 400 million parameters, 6.4 GB with Adam
    rows = torch.zeros(32, 4096, device="meta")
    taken = [advise_for(model, 8, f"{size} GB", rows).recommended for size in range(20, 2, -1)]
    order = ["ddp", "zero1", "zero2", "fsdp", "tp", "fsdp --cpu-offload"]
    places = [order.index(name) for name in taken if name]
    assert places[0] == 0
    assert places == sorted(places)
    assert {"ddp", "zero1", "fsdp"} <= set(taken)


def test_every_line_can_be_parsed():
    advice = advise_for(blocks(), 2, "8 GB", precision="bf16", accumulate=4)
    lines = [row.line for row in advice.rows if row.line]
    assert len(lines) >= 10
    for line in lines:
        options = RunOptions.parse(line.removeprefix("%%mgpu"))
        assert (options.gpus, options.precision, options.accumulate) == (2, "bf16", 4)
    offload = advice.row("fsdp --cpu-offload")
    assert offload.line.endswith("--cpu-offload")


def test_there_is_a_row_for_each_strategy():
    advice = advise_for(blocks(), 8, "8 GB")
    names = {row.name for row in advice.rows if "--mesh" not in row.name}
    assert names == {*strategy_names(), "fsdp --cpu-offload", "tp --sequence-parallel"}
    for row in advice.rows:
        assert row.low == pytest.approx(sum(part.low for part in row.parts), abs=8)
        assert row.high == pytest.approx(sum(part.high for part in row.parts), abs=8)
        assert all(part.low <= part.high for part in row.parts), row
        assert row.source or row.name == "none"
    json.dumps(asdict(advice), allow_nan=False)


def test_nothing_is_recommended_if_nothing_fits():
    advice = advise_for(blocks(16384, 40), 2, "1 GB", torch.zeros(2, 16384, device="meta"))
    assert advice.recommended == ""
    assert advice.line == ""
    assert "With more ranks each needs less" in advice.reason
    assert any("until then each rank holds all" in note for note in advice.notes)


def test_layers_that_fsdp_cannot_gather_are_split():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(65536, 65536), nn.ReLU(), nn.Linear(65536, 10))
    rows = torch.zeros(64, 65536, device="meta")
    optimizer = torch.optim.SGD(model.parameters())
    advice = nbmgpu.advise(model, optimizer, rows, gpus=8, memory="24 GB")
    assert advice.recommended == "tp --mesh dp=2,tp=4"
    assert advice.line == "%%mgpu --strategy tp --gpus 8 --mesh dp=2,tp=4"
    assert RunOptions.parse(advice.line.removeprefix("%%mgpu")).mesh == ("dp=2", "tp=4")
    assert "what fsdp gathers" in advice.reason


def test_layers_are_divided_over_stages_if_nothing_else_fits():
    model, pictures = blocks(1024, 24), torch.zeros(2, 400, 500, 1024, device="meta")
    advice = advise_for(model, 8, "22 GB", pictures)  # a sample has 20 GB of activations
    assert advice.recommended == "fsdp+pp"
    assert "divides layers over stages" in advice.reason
    assert RunOptions.parse(advice.line.removeprefix("%%mgpu")).strategy == "fsdp+pp"
    assert advise_for(model, 8, "36 GB", pictures).recommended == "ddp"


def test_activations_between_split_layers_are_divided_if_they_are_too_large():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 8}
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**sizes, num_attention_heads=64, use_cache=False)
        )
    ids = torch.zeros(1, 32768, dtype=torch.long, device="meta")
    advisor = ModelAdvisor(
        model, torch.optim.AdamW(model.parameters()), {"input_ids": ids, "labels": ids}
    )
    advice = advisor.advise(AdviceRequest(gpus=8, memory="50 GB", checkpointing=True))
    line = "%%mgpu --strategy tp --gpus 8 --checkpointing --sequence-parallel"
    assert (advice.recommended, advice.line) == ("tp --sequence-parallel", line)
    assert "--sequence-parallel splits them, too" in advice.reason


def test_sequences_are_split_if_one_is_too_long(small_llama):
    optimizer = torch.optim.AdamW(small_llama.parameters())
    advice = nbmgpu.advise(small_llama, optimizer, (1, 32768), gpus=8, memory="12 GB")
    assert advice.recommended == "sp"
    assert "splits each sequence" in advice.reason
    assert advice.row("ddp").low > advice.free
    # With enough sequences, each rank has its own.
    more = nbmgpu.advise(small_llama, optimizer, (64, 1024), gpus=8, memory="12 GB")
    assert more.recommended.startswith(("ddp", "zero", "fsdp"))


def test_meshes_have_rows_from_four_ranks():
    names = [{row.name for row in advise_for(blocks(), n, "8 GB").rows} for n in (2, 4, 6)]
    assert not any("--mesh" in name for name in names[0])
    assert "tp --mesh dp=2,tp=2" in names[1]
    assert "pp --mesh dp=2,pp=3" in names[2]
    assert not any("+" in name for name in names[0])
    for combined in names[1:]:
        assert {name for name in combined if "+" in name} == {"fsdp+tp", "tp+pp", "fsdp+pp"}


def test_notes_name_the_strategies_for_slow_links():
    notes = " ".join(advise_for(blocks(), 4, "8 GB").notes)
    assert "hsdp sends only gradients of shards" in notes
    assert "pp only activations" in notes


def test_checkpointing_is_recommended_for_large_activations():
    with torch.device("meta"):
        inner = (nn.Linear(512, 1024), nn.Tanh(), nn.Linear(1024, 512))
        model = nn.Sequential(*(nn.Sequential(*inner) for _ in range(30)))
    rows = torch.zeros(400_000, 512, device="meta")
    advice = advise_for(model, 2, "20 GB", rows)
    assert advice.line.endswith("--gpus 2 --checkpointing")
    assert advice.row(advice.recommended).line == advice.line
    assert "activations recomputed" in advice.reason or "recomputing" in advice.reason
    assert nbmgpu.advise(model, batch=rows, gpus=2, memory="20 GB").row("ddp").fits == "no"


def test_ddp_is_recommended_on_one_device():
    advice = advise_for(blocks(), 1, "8 GB")
    assert advice.recommended == "ddp"
    assert "one device" in advice.reason


def test_no_strategy_is_reported_to_fit_without_a_batch():
    advice = nbmgpu.advise(blocks(), gpus=2, memory="8 GB")
    assert {row.fits for row in advice.rows} == {"unknown"}
    assert advice.largest_batch is None
    assert advice.recommended == "ddp"
    assert any("Adam is assumed" in note for note in advice.notes)
    assert any("give batch= or loader=" in note for note in advice.notes)


def test_the_largest_batch_fits():
    model = blocks()
    most = advise_for(model, 2, "4 GB").largest_batch
    assert most
    again = advise_for(model, 2, "4 GB", torch.zeros(most, 1024, device="meta"))
    assert again.row("ddp").fits == "fits"


def test_the_largest_batch_hardly_depends_on_the_given_batch():
    model = nn.Sequential(
        nn.Linear(1000, 4000), nn.ReLU(), nn.Linear(4000, 4000), nn.Linear(4000, 10)
    )
    optimizer = torch.optim.SGD(model.parameters())
    most = [
        nbmgpu.advise(model, optimizer, torch.zeros(n, 1000, device="meta"), gpus=2, memory="3 GB")
        for n in (8, 64, 2048)
    ]
    found = [advice.largest_batch for advice in most]
    assert min(found) > 20_000
    assert max(found) < 1.3 * min(found)


def test_memory_without_a_unit_raises_an_error():
    with pytest.raises(OptionError, match="80 bytes, less than any GPU has"):
        nbmgpu.advise(nn.Linear(2, 2), gpus=2, memory=80)


def test_nothing_is_recommended_without_trainable_parameters():
    frozen = nn.Linear(20, 5).requires_grad_(False)
    for model in (frozen, nn.ReLU()):
        advice = nbmgpu.advise(model, batch=torch.zeros(8, 20), gpus=2, memory="8 GB")
        assert "nothing to train" in advice.reason
        assert (advice.recommended, advice.line) == ("", "")


def test_lazy_modules_raise_an_error():
    with pytest.raises(OptionError, match="lazy modules"):
        nbmgpu.advise(nn.LazyLinear(3))


def test_there_is_no_largest_batch_if_not_even_one_sample_fits():
    batch = torch.zeros(2, 1000)
    advice = nbmgpu.advise(nn.Linear(1000, 1000), gpus=2, memory="600 MB", batch=batch)
    assert advice.row(advice.recommended).fits == "tight"
    assert advice.largest_batch is None
    assert "A global batch" not in repr(advice)


def test_a_row_has_the_reason_why_a_strategy_is_unavailable():
    model = nn.Linear(20, 5)
    batch = torch.zeros(8, 20)
    half = ModelAdvisor(model, None, batch).advise(
        AdviceRequest(gpus=2, precision="fp16", memory="8 GB")
    )
    assert half.row("fsdp").line == ""
    assert "bf16 needs no scaling" in half.row("fsdp").problem
    whole = ModelAdvisor(model, torch.optim.LBFGS(model.parameters()), batch)
    row = whole.advise(AdviceRequest(gpus=2, memory="8 GB")).row("zero1")
    assert row.line == ""
    assert row.problem.startswith("does not support LBFGS")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "model"}, "The model is a str"),
        ({"optimizer": "adam"}, "The optimizer is a str"),
        ({"memory": "80 GB"}, "It goes with a number of GPUs"),
        ({"gpus": 0}, "0 GPUs cannot run a cell"),
        ({"precision": "fp8"}, "The precision cannot be 'fp8'"),
        ({"batch": (8, 0)}, "is not a batch"),
        ({"gpus": 10_000}, "10000"),
    ],
)
def test_invalid_arguments_raise_errors(arguments, message):
    arguments = {"model": nn.Linear(2, 2)} | arguments
    with pytest.raises(OptionError, match=message):
        nbmgpu.advise(**arguments)


def test_this_machine_is_probed_by_default():
    model = nn.Linear(20, 5)
    advice = nbmgpu.advise(model, torch.optim.SGD(model.parameters()), torch.zeros(8, 20))
    assert advice.free
    assert advice.recommended == "ddp"
    text, html = repr(advice), advice._repr_html_()
    assert "->  ddp" in text
    assert advice.line in text
    assert "<script" not in html
    assert advice.line in html
    assert "<svg" in html


@pytest.fixture(scope="module")
def small_llama():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=8, vocab_size=4000,
    )  # fmt: skip
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(config)


def large_llama(layers: int):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=8192, intermediate_size=28672, num_hidden_layers=layers,
        num_attention_heads=64, num_key_value_heads=8, vocab_size=128256,
    )  # fmt: skip
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(config)


@pytest.fixture(scope="module")
def llama():
    return large_llama(80)


def advise_on_64_gpus(model) -> tuple[Advice, float]:
    """Return the advice, and the seconds of CPU that it took: others may use the cores, too."""
    start = time.process_time()
    advice = nbmgpu.advise(
        model, torch.optim.AdamW(model.parameters()), (64, 4096),
        gpus=64, memory="80 GB", precision="bf16", checkpointing=True,
    )  # fmt: skip
    return advice, time.process_time() - start


def test_70_billion_parameters_need_no_memory(llama):
    _, eighth = advise_on_64_gpus(large_llama(10))
    held = psutil.Process().memory_info().rss
    advice, took = advise_on_64_gpus(llama)
    assert psutil.Process().memory_info().rss - held < 1 << 29
    assert took < 3 * 8 * eighth, "the time grows faster than the number of layers"
    assert "70.6 billion parameters" in advice.model
    assert advice.row("ddp").fits == "no"
    assert advice.row("zero1").fits == "no"
    assert advice.row("ddp").low > 16 * 70e9
    assert advice.recommended.startswith("fsdp")


def test_70_billion_parameters_are_offloaded_to_the_host(llama):
    advice = nbmgpu.advise(llama, batch=(8, 2048), gpus=8, memory="24 GB")
    assert advice.recommended == "fsdp --cpu-offload"
    assert "1.0 TiB of it in the memory of the host" in advice.reason


def test_offloaded_states_must_fit_into_the_memory_of_the_host():
    model = blocks(16384, 40)  # 172 GB with Adam
    advisor = ModelAdvisor(model, torch.optim.Adam(model.parameters()), torch.zeros(8, 16384))
    gpus = tuple(Gpu(i, "small", int(8e9), int(8e9)) for i in range(2))
    machine = Machine(cores=8, memory=int(64e9), gpus=gpus, cuda=True)
    row = advisor.advise(AdviceRequest(gpus=2), machine).row("fsdp --cpu-offload")
    assert row.fits == "no"
    assert "of the host" in row.problem


def test_a_loader_can_be_given_as_the_batch():
    model = nn.Linear(8, 2)
    loader = DataLoader(TensorDataset(torch.zeros(12, 8)), batch_size=4)
    results = [nbmgpu.advise(model, None, loader), nbmgpu.advise(model, loader=loader)]
    assert results[0].rows == results[1].rows
    assert any("2 samples on each rank" in note for note in results[0].notes)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(2))

    def forward(self, x):
        return self.layers[1](self.layers[0](x))


def test_the_given_unit_classes_are_used():
    model = nn.Sequential(*(Pair() for _ in range(4)))
    advisor = ModelAdvisor(model, batch=torch.zeros(4, 512))

    def largest(*units):
        options = RunOptions.of(strategy="fsdp", gpus=2, cpu=True, fsdp_units=units)
        advice = advisor.advise(AdviceRequest.from_options(options))
        assert advice.line.endswith(f"--fsdp-units {units[0]}")
        assert "only fsdp, hsdp and zero2" in advice.reason
        return advice.row("fsdp").high

    assert largest("Linear") < largest("Pair")
    with pytest.raises(OptionError, match="Conv2d"):
        largest("Conv2d")
