"""``--deepspeed-config``: what a user's configuration may set, and what is refused."""

from __future__ import annotations

import json

import pytest
from idioms.comparison import assert_equal
from idioms.idiom import idiom
from idioms.sources import ADAM

import nbmgpu
from nbmgpu.errors import StrategyError
from nbmgpu.strategies.deepspeed.config import read_config
from nbmgpu.strategies.strategy_options import StrategyOptions


def read(tmp_path, given, stage=2, offload=False, **tuning):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(given))
    notices = []
    tuned = StrategyOptions(deepspeed_config=str(path), **tuning)
    config = read_config(tuned, stage, offload, 1000, lambda topic, text: notices.append(text))
    return config, notices


def test_clipping_is_off_by_default():
    config = read_config(StrategyOptions(), 2, False, 1000, lambda topic, text: None)
    assert config["gradient_clipping"] == 0.0


def test_a_users_configuration_is_merged(tmp_path):
    given = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": 16,
        "gradient_clipping": "auto",
        "wall_clock_breakdown": False,
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 77, "overlap_comm": True},
    }
    config, notices = read(tmp_path, given)
    assert config["zero_optimization"]["reduce_bucket_size"] == 77
    assert config["train_micro_batch_size_per_gpu"] == 1
    assert "train_micro_batch_size_per_gpu" in notices[0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"optimizer": {"type": "Adam"}}, "optimizer of its own"),
        ({"scheduler": {"type": "WarmupLR"}}, "steps its scheduler"),
        ({"gradient_clipping": 1.0}, "--clip"),
        ({"gradient_accumulation_steps": 4}, "--accumulate"),
        ({"fp16": {"enabled": True}}, "--precision fp16"),
        ({"zero_optimization": {"stage": 3}}, "deepspeed_stage_3"),
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, "2_offload"),
        ({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}, "memory of the host"),
        ({"zero_optimization": {"zero_quantized_gradients": True}}, "rounded"),
        ({"zero_optimization": {"round_robin_gradients": True}}, "orders the partitions"),
        ({"zero_optimization": {"something_new": 3}}, "not known"),
        ({"something_new": True}, "not known"),
        ({"tensor_parallel": {"autotp_size": 2}}, "Try: %%mgpu --strategy tp"),
        ({"sequence_parallel_size": 2}, "Try: %%mgpu --strategy sp"),
    ],
)
def test_options_that_change_the_training_are_refused(tmp_path, given, words):
    with pytest.raises(StrategyError, match=words):
        read(tmp_path, given)


@pytest.mark.parametrize("text", ['{"zero_optimization": {"stage": 3}}', "{"])
def test_a_configuration_is_refused_before_anything_starts(tmp_path, monkeypatch, text):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path / "runs"))
    path = tmp_path / "ds.json"
    path.write_text(text)
    with pytest.raises(StrategyError, match=r"stage 3|cannot be read"):
        nbmgpu.run("1", {}, strategy="deepspeed_stage_2", deepspeed_config=str(path), cpu=True)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("stage", "key"), [(1, "reduce_bucket_size"), (2, "reduce_bucket_size"), (3, "sub_group_size")]
)
def test_a_users_configuration_reaches_the_engine(tmp_path, stage, key):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"zero_optimization": {key: 50}}))
    case = idiom("many small parts", setup=ADAM)
    strategy = f"deepspeed_stage_{stage}"
    assert_equal(case, notices="", strategy=strategy, deepspeed_config=str(path))
