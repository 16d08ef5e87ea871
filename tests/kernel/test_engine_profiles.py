"""Engine profiles: added by a magic or in a terminal, used by ``--engine``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nbmgpu.comparison import request
from nbmgpu.errors import OptionError
from nbmgpu.frontend.completer import _command_completions
from nbmgpu.frontend.engine_command import engine_text
from nbmgpu.frontend.info import info_text
from nbmgpu.options.engine_profiles import profiles_path, read_profiles
from nbmgpu.options.run_options import RunOptions

CLUSTER = "add cluster --engine slurm partition=gpu,time=2:00:00 --nodes 2 --gpus 4"
COMMAND = Path(sys.executable).with_name("nbmgpu")


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    return tmp_path / "config"


def test_a_notebook_adds_uses_and_removes_a_profile(notebook):
    assert "no engine profile yet" in notebook.run("%mgpu engine").text()
    added = notebook.run("%mgpu engine add three --gpus 3 --cpu --timeout 90").text()
    path = notebook.folder / "config" / "nbmgpu" / "engines.toml"
    line = "--engine local --gpus 3 --cpu --timeout 90"
    assert added == f"Profile three added in {path}: {line}\n"
    assert notebook.run("%mgpu engine").text() == f"three  {line}\n"
    assert f"Engine profiles\n  three  {line}" in notebook.run("%mgpu info").text()
    cell = "import os\nint(os.environ['WORLD_SIZE'])"
    assert notebook.run(f"%%mgpu --engine three --strategy none\n{cell}").seen == ["3"]
    options = "nbmgpu.last_run.record.options"
    assert notebook.value(f"({options}.engine, {options}.timeout)") == ("local", 90.0)
    assert notebook.run(f"%%mgpu --engine three --gpus 1\n{cell}").seen == ["1"]
    assert notebook.run("%mgpu engine remove three").text() == "Profile three removed.\n"
    failed = notebook.send(f"%%mgpu --engine three\n{cell}").fails("OptionError")
    assert "There is no engine 'three'" in failed


def test_a_terminal_has_the_same_command(config):
    def terminal(*words):
        return subprocess.run(
            [COMMAND, "engine", *words],
            env=os.environ | {"JUPYTER_CONFIG_DIR": str(config)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert "Try: nbmgpu engine add cluster --engine slurm" in terminal().stdout
    assert "Profile cluster added" in terminal(*CLUSTER.split()).stdout
    assert terminal().stdout == (
        "cluster  --engine slurm --nodes 2 --gpus 4 --engine-option partition=gpu,time=2:00:00\n"
    )
    refused = terminal("remove", "clutser")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.endswith("Try: nbmgpu engine remove cluster\n")


def test_options_of_the_line_win():
    engine_text(CLUSTER)
    options = RunOptions.parse("--engine cluster --gpus 1 --engine-option partition=debug,mem=4G")
    assert options == RunOptions(
        engine="slurm",
        nodes=2,
        gpus=1,
        engine_option=("partition=debug", "time=2:00:00", "mem=4G"),
    )
    assert RunOptions.of(engine="cluster", engine_option={"qos": "low"}).engine_values() == {
        "partition": "gpu",
        "time": "2:00:00",
        "qos": "low",
    }
    compared = request.parse("compare", "--engine cluster --strategies ddp")
    assert compared.entries[-1].options is not None
    assert compared.entries[-1].options.nodes == 2


@pytest.mark.parametrize(
    "words",
    [
        "--engine slurm 'job-name=a \"b\" \\ ü\x7f' nodelist=a1,a2 nice=1",
        "--engine slurm --engine-option partition=gpu time=1:00 --nodes 2",
        "--gpus 0,1 --detach",
        "--gpus all --cpu --timeout 1.5",
    ],
)
def test_the_file_has_the_options_as_they_were_given(words):
    engine_text(f"add first {words}")
    engine_text(CLUSTER)
    again = words if "--engine-option" in words else words.replace(" 'job", " --engine-option 'job")
    assert RunOptions.parse("--engine first") == RunOptions.parse(again)
    assert list(read_profiles()) == ["first", "cluster"]
    assert "replaced" in engine_text(f"add first {words}")


def test_names_and_profiles_are_suggested():
    engine_text(CLUSTER)
    assert list(_command_completions(["engine"], {})) == ["add", "remove"]
    assert list(_command_completions(["engine", "remove"], {})) == ["cluster"]
    assert "--nodes" in _command_completions(["engine", "add", "x"], {})
    assert "slurm" in _command_completions(["engine", "add", "x", "--engine"], {})


@pytest.mark.parametrize(
    ("words", "text", "instead"),
    [
        ("add", "The profile has no name", "%mgpu engine add cluster"),
        ("add a.b --cpu", "cannot be named 'a.b'", "%mgpu engine add cluster"),
        ("add slurm --cpu", "slurm is an engine", "%mgpu engine add my-slurm --cpu"),
        ("add x", "The profile has no options", "%mgpu engine add x --engine slurm"),
        ("add x --engine slrum", "no engine 'slrum'", "%mgpu engine add x --engine slurm"),
        ("add x --nodes 0 a=1", "not a number of machines", "--nodes 1 --engine-option a=1"),
        ("add x --engine slurm partion=x", "no key 'partion'", "--engine-option partition=x"),
        ("add x --strategy fsdp", "no flag --strategy", "%mgpu engine add x --engine slurm"),
        ("add x --nodes 2", "needs an engine for several machines", "--engine slurm --nodes 2"),
        ("remove", "Which profile?", "%mgpu engine"),
        ("remove x", "no profile 'x'", "%mgpu engine"),
        ("ad x", "no %mgpu engine ad", "%mgpu engine add"),
        ("add 'x", "quote is not closed", "%mgpu engine add cluster"),
    ],
)
def test_a_malformed_line_says_what_to_type(words, text, instead):
    with pytest.raises(OptionError) as raised:
        engine_text(words)
    assert text in str(raised.value)
    assert instead in str(raised.value).partition("Try: ")[2]
    assert not profiles_path().exists()


def test_an_unknown_engine_lists_engines_and_profiles():
    engine_text(CLUSTER)
    listed = r"no engine 'clutser'.*\n.*Engines: local, .*slurm; profiles: cluster.*\nTry: "
    with pytest.raises(OptionError, match=rf"{listed}%%mgpu --strategy ddp --engine cluster$"):
        RunOptions.parse("--engine clutser")
    with pytest.raises(OptionError, match=rf"{listed}%%mgpu compare --engine cluster$"):
        request.parse("compare", "--engine clutser")
    with pytest.raises(OptionError, match=rf"{listed}engine='cluster'"):
        RunOptions.of(engine="clutser")


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("--engine cluster --gpsu 2", "--gpus 2 --engine cluster"),
        ("--engine cluster --strategy fdsp", "--engine cluster"),
        ("--engine cluster --nodes x", "--engine cluster --nodes 1"),
        (
            "--engine cluster --stpes 3 --engine-option partition=x",
            "--engine cluster --engine-option partition=x",
        ),
        ("--engine slurm --nodes 2 --stpes 3", "--engine slurm --nodes 2"),  # gpus are not wanted
    ],
)
def test_a_line_with_a_profile_is_suggested_with_its_name(line, instead):
    engine_text(CLUSTER)
    engine_text("add other --engine slurm --nodes 8 qos=low")
    with pytest.raises(OptionError) as raised:
        RunOptions.parse(line)
    command = str(raised.value).partition("Try: ")[2]
    words = command.removeprefix("%%mgpu --strategy ")
    for word in ("ddp ", "fsdp ", "--steps 3 "):
        words = words.replace(word, "")
    assert words == instead
    RunOptions.parse(command.removeprefix("%%mgpu "))


def test_a_comparison_leaves_out_what_it_does_not_have():
    engine_text("add alone --gpus 2 --cpu --detach")
    compared = request.parse("compare", "--engine alone --strategies ddp")
    assert compared.command == "%%mgpu compare --strategies ddp --engine alone"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("[x", "cannot be read"),
        ("x = 1", 'has no line engine = "slurm"'),
        ("[x]\nnodes = 1", 'has no line engine = "slurm"'),
        ('[x]\nengine = "slurm"\nstrategy = "fsdp"', "unknown option: strategy"),
    ],
)
def test_a_damaged_file_is_reported_where_it_is_needed(content, text):
    profiles_path().parent.mkdir(parents=True)
    profiles_path().write_text(content)
    with pytest.raises(OptionError, match=text):
        RunOptions.parse("--engine x")
    with pytest.raises(OptionError, match=text):
        engine_text(CLUSTER)
    assert text in info_text()
    assert RunOptions.parse("--engine slurm --nodes 2").nodes == 2
