"""Names, options and documentation of the strategies, without starting ranks."""

import dataclasses
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import nbmgpu
from nbmgpu.devices.probe import TorchBuild
from nbmgpu.errors import OptionError
from nbmgpu.options.run_options import RunOptions
from nbmgpu.strategies import canonical, load_strategy, profile_of, strategy_names
from nbmgpu.strategies.profiles import BUILT_IN
from nbmgpu.strategies.strategy_options import FIELDS, StrategyOptions

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("ddp", "ddp"), ("DDP", "ddp"), ("ddp_notebook", "ddp"), ("ddp_sharded", "zero1"),
        ("zero-1", "zero1"), ("FSDP2", "fsdp"), ("zero3", "fsdp"), ("shard_grad_op", "zero2"),
        ("full_shard", "fsdp"), ("deepspeed", "deepspeed_stage_2"), ("ds3", "deepspeed_stage_3"),
        ("deepspeed_stage_3_offload", "deepspeed_stage_3_offload"), ("DataParallel", "dp"),
        ("nonsense", None),
    ],
)  # fmt: skip
def test_names_of_other_tools_are_aliases(written, meant):
    assert canonical(written) == meant
    if meant:
        assert RunOptions.parse(f"--strategy {written}").strategy == meant


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # DeepSpeed's, when it is imported
def test_every_name_is_unique_and_every_class_loads():
    names = [name for p in BUILT_IN.values() for name in (p.name, *p.aliases)]
    assert len(names) == len(set(names))
    assert set(BUILT_IN) == set(strategy_names())
    for name in strategy_names():
        assert load_strategy(name).profile is profile_of(name)


def test_strategy_options_are_read_from_the_options_of_a_run():
    options = RunOptions(strategy="fsdp", clip=2, fsdp_units=["Block"])
    kept = json.loads(json.dumps(dataclasses.asdict(options)))
    assert StrategyOptions.from_mapping(kept) == StrategyOptions(clip=2.0, fsdp_units=("Block",))
    for profile in BUILT_IN.values():
        assert profile.options.handled <= profile.options.supported <= set(FIELDS)


@pytest.mark.parametrize(
    ("line", "reason", "instead"),
    [
        ("-s zero1 --cpu-offload", "the model is not sharded", "--strategy fsdp --cpu-offload"),
        ("-s ddp --fsdp-units Block", "only fsdp, hsdp and", "--strategy fsdp --fsdp-units Block"),
        ("-s none --clip 1 --accumulate 2", "leaves the cell as it is", "--strategy none"),
        ("-s ds2 --compile", "compiles its engine", "--strategy zero2 --compile"),
        ("-s ds2 --cpu-offload", "part of the name", "--strategy deepspeed_stage_2"),
        ("-s dp --sync-batchnorm -g 2", "alone", "--strategy ddp --gpus 2 --sync-batchnorm"),
        ("-s fsdp --precision fp16", "not scaled", "--strategy ddp --precision fp16"),
        ("-s fsdp --find-unused", "ddp's reducer", "--strategy fsdp"),
    ],
)
def test_an_unsupported_option_is_refused_with_a_line_that_works(line, reason, instead):
    with pytest.raises(OptionError) as caught:
        RunOptions.parse(line)
    assert reason in str(caught.value)
    assert str(caught.value).endswith(f"Try: %%mgpu {instead}")
    RunOptions.parse(instead)


def test_the_table_in_the_documentation_is_generated_from_the_profiles():
    table = runpy.run_path(str(REPOSITORY / "tools" / "strategy_table.py"))["table"]()
    assert table in (REPOSITORY / "docs" / "strategies.md").read_text(), "tools/strategy_table.py"


def test_a_torch_that_is_too_old_is_refused_before_anything_starts(monkeypatch):
    build = TorchBuild("2.9.1+cpu", None, None)
    monkeypatch.setattr("nbmgpu.devices.requirements.torch_build", lambda: build)
    with pytest.raises(OptionError, match=r"fsdp needs torch 2\.11 or newer, and this is 2\.9\.1"):
        nbmgpu.run("pass", {}, strategy="fsdp", gpus=2, cpu=True)


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr("nbmgpu.devices.requirements.importlib.util.find_spec", lambda name: None)
    with pytest.raises(OptionError, match="%pip install deepspeed"):
        nbmgpu.run("pass", {}, strategy="ds3", gpus=2, cpu=True)


def test_options_are_checked_without_torch():
    code = (
        "import sys; from nbmgpu.options.run_options import RunOptions;"
        "[RunOptions.parse('--strategy ' + n) for n in ('fsdp', 'deepspeed', 'zero2')];"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
