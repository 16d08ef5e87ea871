"""The formulas, compared with the numbers in their papers and packages."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest

from nbmgpu.advisor import memory_model, speed_model
from nbmgpu.advisor.activations import Activations, korthikanti
from nbmgpu.advisor.fsdp_units import UnitSizes
from nbmgpu.advisor.interval import Interval, format_interval, parse_bytes
from nbmgpu.advisor.model_size import ModelSize
from nbmgpu.errors import OptionError
from nbmgpu.formatting import format_bytes

GB = 1e9
PARAMETERS = 1_000_000


def setup(ranks, **more):
    """Return one million parameters in 10 equal tensors, with Adam in float32."""
    size = PARAMETERS // 10
    model_size = ModelSize(
        elements=PARAMETERS, trainable=PARAMETERS, parameters=4 * PARAMETERS,
        gradients=4 * PARAMETERS, buffers=0, numels=(size,) * 10, states=(8 * size,) * 10,
        largest=0, optimizer="Adam", states_assumed=False,
    )  # fmt: skip
    units = UnitSizes(sharded=4 * PARAMETERS, root=0, largest=0, smallest=0, replicated=0)
    return memory_model.TrainingSetup(model_size, units, None, ranks, on_gpu=False, **more)


def per_parameter(name, ranks):
    memory = memory_model.estimate_memory(name, setup(ranks))
    assert memory is not None
    return memory_model.total({k: v for k, v in memory.items() if k != "extra"}).low / PARAMETERS


@pytest.mark.parametrize(("stage", "size"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.88)])
def test_zero_model_states_match_the_paper_for_64_gpus(stage, size):
    # Figure 1 of 1910.02054: 7.5 billion parameters, 64 GPUs.
    assert memory_model.zero_model_states(stage, 64, 7.5e9) / GB == pytest.approx(size, rel=0.01)


@pytest.mark.parametrize(("stage", "size"), [(1, 52.5), (2, 41.3), (3, 30)])
def test_zero_model_states_match_the_paper_for_4_gpus(stage, size):
    # Table 1 of 1910.02054.
    assert memory_model.zero_model_states(stage, 4, 7.5e9) / GB == pytest.approx(size, rel=0.01)


@pytest.mark.parametrize(
    ("name", "at_2", "at_4"),
    [("ddp", 20, 20), ("zero1", 16, 14), ("zero2", 10, 7), ("fsdp", 8, 4)],
)
def test_estimates_match_measurements(name, at_2, at_4):
    # As tests/strategies/test_memory.py measures between steps, but for zero2, which has all
    # parameters gathered when its backward pass begins, and no gradients yet.
    assert per_parameter(name, 2) == pytest.approx(at_2)
    assert per_parameter(name, 4) == pytest.approx(at_4)


def test_a_stage_is_gathered_for_a_step():
    halves = setup(4, mesh={"pp": 2, "fsdp": 2}, held=0.5, kept=0.25)
    memory = memory_model.estimate_memory("fsdp+pp", halves)
    kept = 16 / 4
    parameters, gradients = 4 / 2, (4 / 4, 4 / 2)  # of the stage; the latter besides the shards
    buffers = memory["buffers"] * (1 / PARAMETERS)
    assert (buffers.low, buffers.high) == (parameters + gradients[0], parameters + gradients[1])
    held = [memory[kind].low for kind in ("parameters", "gradients", "optimizer")]
    assert sum(held) == kept * PARAMETERS


def test_zero1_assigns_whole_parameters_to_ranks():
    sizes = (700, 100, 100, 100)
    model_size = ModelSize(
        1000, 1000, 4000, 4000, 0, sizes, tuple(8 * s for s in sizes), 2800, "", False
    )
    assert model_size.largest_state_shard(2) == 5600  # not half of 8000


@pytest.mark.parametrize(("heads", "width", "term"), [(96, 12288, 80), (128, 20480, 64)])
def test_the_attention_term_matches_the_paper(heads, width, term):
    # 2205.05198, section 4: 80 for GPT-3 and 64 for MT-NLG, with 2048 tokens.
    whole = korthikanti(2048, 1, width, 1, heads) / (2048 * width)
    selective = korthikanti(2048, 1, width, 1, heads, recompute="selective") / (2048 * width)
    assert selective == 34
    assert whole - selective == pytest.approx(term)
    assert korthikanti(2048, 1, width, 1, heads, recompute="full") == 2 * 2048 * width
    assert 1 - selective / whole == pytest.approx({80: 0.70, 64: 0.65}[term], abs=0.01)


def test_tensor_parallelism_divides_all_but_the_first_term():
    assert korthikanti(2048, 4, 4096, 8, 32, tensor_parallel=8) == pytest.approx(
        2048 * 4 * 4096 * 8 * (10 + 24 / 8 + 5 * 32 * 2048 / (4096 * 8))
    )


def test_deepspeeds_estimator_differs_from_its_documentation():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zero2 = pytest.importorskip("deepspeed.runtime.zero.stage_1_and_2")
    _, computed = zero2.estimate_zero2_model_states_mem_needs(
        2851e6, num_gpus_per_node=8, cpu_offload=False
    )
    assert computed == pytest.approx((2 + 18 / 8) * 2851e6)
    assert computed / 2**30 == pytest.approx(11.3, abs=0.05)
    assert pytest.approx(15.93, abs=0.01) == (4 + 16 / 8) * 2851e6 / 2**30  # documented


@pytest.mark.parametrize(
    ("name", "volume"), [("ddp", 2), ("zero1", 3), ("zero2", 2), ("fsdp", 3), ("none", None)]
)
def test_communication_volumes(name, volume):
    assert speed_model.communication_volume(name, setup(4)) == volume


def with_messages(name, ranks, **more):
    """Return a setup whose layers communicate as many bytes as there are parameters."""
    size = Interval(0.0, 0.0)
    acts = Activations(8, *[size] * 5, "", largest_message=1e6, all_messages=4e6)
    names = name.split("+")
    mesh = dict.fromkeys(names, round(ranks ** (1 / len(names))))
    return replace(setup(ranks, mesh=mesh, **more), activations=acts)


@pytest.mark.parametrize(
    ("name", "volume"),
    [
        ("tp", 4), ("sp", 8 / 4 + 2), ("cp", 6 + 2), ("pp", 4 / 4), ("tp+pp", 4 / 2 + 4 / 4),
        ("fsdp+pp", 4 / 4 + 2 / 2),
    ],
)  # fmt: skip
def test_volumes_of_activations(name, volume):
    halves = with_messages(name, 4, held=0.5, kept=0.25)
    assert speed_model.communication_volume(name, halves) == volume
    assert speed_model.communication_volume(name, setup(4)) is None


def test_stages_wait_for_each_other():
    # 1811.06965, section 2.3: (K - 1) / (M + K - 1) of a pass.
    assert speed_model.pipeline_shares(with_messages("pp", 4)) == (1 / 4, 8 / 11)
    pp = speed_model.estimate_speed("pp", with_messages("pp", 4))
    assert (pp.low, pp.high) == (0.25, pytest.approx(0.73))
    assert "GPipe" in pp.reason


def test_speeds_have_ranges_and_reasons():
    assert speed_model.estimate_speed("ddp", setup(2)).text == "as ddp"
    fsdp = speed_model.estimate_speed("fsdp", setup(2))
    assert (fsdp.low, fsdp.high) == (0.6, 1.0)
    assert "3x the parameters" in fsdp.reason
    assert speed_model.estimate_speed("fsdp", setup(1)).text == "as ddp"
    assert speed_model.estimate_speed("none", setup(2)).low is None
    half = speed_model.estimate_speed("zero2", setup(2, precision="bf16"))
    assert half.high == pytest.approx(1.33)


@pytest.mark.parametrize(
    ("given", "size"),
    [("80 GB", 80e9), ("24GiB", 24 * 2**30), ("512 MiB", 2**29), ("1.5K", 1536), (7, 7)],
)
def test_amounts_of_memory_are_parsed(given, size):
    assert parse_bytes(given) == size


@pytest.mark.parametrize("given", ["much", "-3 GB", 0, "", "80 XB", float("inf")])
def test_invalid_amounts_of_memory_raise_an_error(given):
    with pytest.raises(OptionError, match="is not an amount of memory"):
        parse_bytes(given)


def test_formatting():
    assert format_bytes(0) == "0 bytes"
    assert format_bytes(1536) == "1.5 KiB"
    assert format_bytes(1023.9 * 2**20) == "1.0 GiB"
    assert format_interval(1.2e9, 1.3e9) == "1.1 to 1.2 GiB"
    assert format_interval(2**20, 2**30) == "1.0 MiB to 1.0 GiB"
    assert Interval(1, 2) + Interval(3, 4) == Interval(4, 6)
