"""Parsing of options, and the errors for invalid options."""

import dataclasses
from random import Random

import pytest

from nbmgpu.errors import OptionError
from nbmgpu.options.flags import FLAGS, RUN
from nbmgpu.options.run_options import DEFAULTS, RunOptions
from nbmgpu.strategies import strategy_names
from nbmgpu.strategies.option_support import ALTERNATIVES


def try_line(message: str) -> str:
    """Return the options of the line that an error suggests."""
    last = message.splitlines()[-1]
    assert last.startswith("Try: %%mgpu")
    return last.removeprefix("Try: %%mgpu").strip()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", {}),
        ("--strategy none", {"strategy": "none"}),
        ("-s none -g 2", {"strategy": "none", "gpus": 2}),
        ("--gpus=2", {"gpus": 2}),
        ("-g4", {"gpus": 4}),
        ("--gpus all", {"gpus": "all"}),
        ("--gpus 0,2", {"gpus": (0, 2)}),
        ("--gpus 0, 2", {"gpus": (0, 2)}),
        ("--gpus 0 2 --cpu", {"gpus": (0, 2), "cpu": True}),
        ("--gpus 2,", {"gpus": (2,)}),
        ("--cpu", {"cpu": True}),
        ("--batch per-rank", {"batch": "per-rank"}),
        ("--seed 0", {"seed": 0}),
        ("--pull model", {"pull": ("model",)}),
        ("--pull model,loss", {"pull": ("model", "loss")}),
        ("--pull model loss --cpu", {"pull": ("model", "loss"), "cpu": True}),
        ("--pull 'model, loss' loss", {"pull": ("model", "loss")}),
        ("--no-pull", {"pull": ()}),
        ("--background --fresh", {"background": True, "fresh": True}),
        ("--detach", {"detach": True}),
        ("--timeout 1.5", {"timeout": 1.5}),
        ("--timeout=60", {"timeout": 60.0}),
        ("--dry-run", {"dry_run": True}),
        ("--profile", {"profile": "5-10"}),
        ("--profile --cpu", {"profile": "5-10", "cpu": True}),
        ("--profile 1-3", {"profile": "1-3"}),
        ("--profile '7 - 07'", {"profile": "7-7"}),
        ("--gpus 2  # both of them", {"gpus": 2}),
        ("--gpus 0,0", {"gpus": (0, 0)}),
        ("--mesh tp=2, pp=2", {"strategy": "tp+pp", "mesh": ("tp=2", "pp=2")}),
        (
            '-s tp --tp-plan {"layers.*.fc1": "colwise", "fc2": "rowwise"}',
            {"strategy": "tp", "tp_plan": ("layers.*.fc1=colwise", "fc2=rowwise")},
        ),
    ],
)
def test_a_line_is_parsed(line, expected):
    options = RunOptions.parse(line)
    assert dataclasses.asdict(options) == DEFAULTS | expected
    assert options == RunOptions.of(**expected)
    assert RunOptions.parse(options.line()) == options


def test_the_canonical_line_has_the_strategy_and_nondefault_options():
    assert RunOptions().line() == "--strategy ddp"
    assert RunOptions(gpus=2).command == "%%mgpu --strategy ddp --gpus 2"
    line = "--seed=3 --no-pull --timeout 1e3 -g 1, --dry-run --batch per-rank --background"
    assert RunOptions.parse(line).line() == (
        "--strategy ddp --gpus 1, --batch per-rank --seed 3 --no-pull --background "
        "--timeout 1000 --dry-run"
    )


@pytest.mark.parametrize(
    ("line", "text", "instead"),
    [
        ("--gpu 2", "no flag --gpu.\nThe closest is --gpus", "--strategy ddp --gpus 2"),
        ("--num_gpus 2", "The closest is --gpus", "--strategy ddp --gpus 2"),
        ("--dry_run -g 2", "The closest is --dry-run", "--strategy ddp --gpus 2 --dry-run"),
        ("--zorp 3 --cpu", "--background", "--strategy ddp --cpu"),
        (
            "--tp_size 2 --dp-replicate-size=2 -g 4",
            "are given together: --mesh dp=2,tp=2",
            "--strategy tp --gpus 4 --mesh tp=2,dp=2",
        ),
        ("--tensor-parallel-size", "no flag --tensor-parallel-size", "--strategy tp --mesh tp=1"),
        ("--help", "--timeout SECONDS", "--strategy ddp"),
        ("2", "'2' is not a flag", "--strategy ddp --gpus 2"),
        ("none --cpu", "'none' is not a flag", "--strategy none --cpu"),
        ("gpus=2", "'gpus' is not a flag", "--strategy ddp --gpus 2"),
        ("--seed 1 7 -g 2 8,9", "'7' is not a flag", None),
        ("--strategy DPP", f"Strategies: {', '.join(strategy_names())}", "--strategy ddp"),
        ("--strategy", "--strategy has no value", "--strategy ddp"),
        ("--gpus --cpu", "--gpus has no value", "--strategy ddp --gpus all --cpu"),
        ("--gpus two", "'two' does not name GPUs", "--strategy ddp --gpus all"),
        ("--gpus 0", "0 GPUs cannot run a cell", "--strategy ddp --cpu"),
        ("--gpus -1", "-1 GPUs", "--strategy ddp --gpus all"),
        ("--gpus 1.5", "'1.5'", "--strategy ddp --gpus all"),
        ("--gpus 0,-2", "There is no GPU -2", "--strategy ddp --gpus 0,"),
        ("--gpus ,", "empty", "--strategy ddp --gpus all"),
        ("--gpus 2 --gpus 4", "--gpus is given twice", "--strategy ddp --gpus 2"),
        ("--cpu=yes", "--cpu takes no value", "--strategy ddp --cpu"),
        ("--batch perrank", "per-rank: of each rank", "--strategy ddp --batch per-rank"),
        ("--batch 64", "global: the batch size in the cell", "--strategy ddp"),
        ("--seed -1", "from 0 to 4294967295", "--strategy ddp --seed 0"),
        ("--seed x", "'x' is not a seed", "--strategy ddp --seed 0"),
        ("--timeout 5min", "a number of seconds", "--strategy ddp --timeout 600"),
        ("--timeout 0", "'0' is not a time limit", "--strategy ddp --timeout 600"),
        ("--timeout nan", "'nan'", "--strategy ddp --timeout 600"),
        ("--pull", "--pull has no value", "--strategy ddp"),
        ("--pull model.weight 3x", "'model.weight', '3x'", "--strategy ddp --pull model"),
        ("--pull class", "'class'", "--strategy ddp"),
        ("--pull a --no-pull", "contradict each other", "--strategy ddp --pull a"),
        ("--pull 'a", "A quote is not closed", "--strategy ddp --pull a"),
        ("--strategy auto", "%mgpu pick", "--strategy ddp"),
        ("--gpu 2 -s dpp --sed 1", "no strategy 'dpp'", "--strategy ddp --gpus 2 --seed 1"),
    ],
)
def test_an_invalid_line_is_rejected_with_a_valid_suggestion(line, text, instead, capsys):
    with pytest.raises(OptionError) as caught:
        RunOptions.parse(line)
    message = str(caught.value)
    assert text in message
    suggested = try_line(message)
    assert RunOptions.parse(suggested).line() == suggested
    assert instead is None or suggested == instead
    assert capsys.readouterr() == ("", "")


def test_all_errors_of_a_line_are_reported_together():
    with pytest.raises(OptionError) as caught:
        RunOptions.parse("--gpu 2 --strategy dpp --timeout soon")
    for text in ("--gpu.", "'dpp'", "'soon'"):
        assert text in str(caught.value)


def test_random_lines_are_parsed_or_rejected_with_a_valid_suggestion():
    words = (
        "--gpus --gpu=2 -g -g2 --gpus= --pull --pull=a.b --no-pull --cpu --cpu=1 -s ddp none "
        "--seed --timeout=1 --batch global 0,1 , 2, -1 1.5 all x class \" ' # = -- - --zorp \u0663"
    )
    random = Random(0)
    for _ in range(1000):
        line = " ".join(random.choices(words.split(), k=random.randint(1, 6)))
        try:
            options = RunOptions.parse(line)
        except OptionError as error:
            options = RunOptions.parse(try_line(str(error)))
        assert RunOptions.parse(options.line()) == options


@pytest.mark.parametrize(
    ("keywords", "text", "instead"),
    [
        ({"gpu": 2}, "no option 'gpu'", "gpus=2"),
        ({"gpus": True}, "True does not name", "gpus='all'"),
        ({"gpus": 2.0}, "2.0 does not name", "gpus='all'"),
        ({"gpus": []}, "empty", "gpus='all'"),
        ({"cpu": 1}, "neither True nor False", "cpu=True"),
        ({"timeout": True}, "not a time limit", "timeout=600.0"),
        ({"seed": 1.0, "strategy": 3}, "no strategy 3", "strategy='ddp', seed=0"),
        ({"pull": 3}, "cannot be pulled", "pull=None"),
    ],
)
def test_keyword_arguments_are_validated(keywords, text, instead):
    with pytest.raises(OptionError) as caught:
        RunOptions.of(**keywords)
    assert text in str(caught.value)
    assert str(caught.value).endswith(f"Try: {instead}")


@pytest.mark.parametrize(
    "keywords",
    [
        {"cpu_offload": True},
        {"strategy": "fsdp", "precision": "fp16"},
        {"strategy": "dp", "batch": "per-rank", "gpus": 2.0},
        {"strategy": "zero", "seed": 1.0},
    ],
)
def test_suggested_keyword_arguments_are_valid(keywords):
    with pytest.raises(OptionError) as caught:
        RunOptions.of(**keywords)
    typed = str(caught.value).rpartition("Try: ")[2]
    RunOptions.of(**keywords | eval(f"dict({typed})"))


def test_a_path_with_spaces_is_quoted(tmp_path):
    path = tmp_path / "a folder" / "ds.json"
    path.parent.mkdir()
    path.write_text("{}")
    options = RunOptions.of(strategy="deepspeed_stage_2", deepspeed_config=str(path))
    assert RunOptions.parse(options.line()) == options


def test_keyword_arguments_may_be_text_or_lists():
    assert RunOptions.of(gpus=[0, 2], pull=["a", "b"]) == RunOptions(gpus=(0, 2), pull=("a", "b"))
    assert RunOptions.of(gpus="0,2", pull="a, b", timeout=3) == RunOptions.parse(
        "--gpus 0,2 --pull a,b --timeout 3"
    )
    assert RunOptions.of(pull="") == RunOptions.of(pull=[]) == RunOptions.parse("--no-pull")
    options = RunOptions.parse("--gpus 1, --pull a")
    assert RunOptions.of(**dataclasses.asdict(options)) == options


@pytest.mark.parametrize(
    ("line", "in_background", "limit", "may_restart"),
    [
        ("", False, None, True),
        ("--detach", True, 24 * 3600, False),
        ("--detach --timeout 60", True, 60, False),
        ("--detach --engine slurm", False, None, True),
        ("--background", True, None, False),
    ],
)
def test_a_detached_run_is_in_the_background_and_limited(line, in_background, limit, may_restart):
    options = RunOptions.parse(line)
    assert options.in_background is in_background
    assert options.time_limit == limit
    assert options.may_restart is may_restart


def test_options_are_frozen_and_hashable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunOptions().gpus = 2
    assert len({RunOptions(gpus=2), RunOptions.parse("-g 2")}) == 1
    with pytest.raises(OptionError, match="There is no GPU -1"):
        dataclasses.replace(RunOptions(), gpus=(-1,))


def test_the_table_of_flags_covers_the_options_and_the_help():
    assert {flag.field for flag in FLAGS} == set(DEFAULTS)
    assert all(flag.usage in RUN.help_text() and flag.help in RUN.help_text() for flag in FLAGS)
    for flag in FLAGS:
        for value in flag.completions():
            strategy = ALTERNATIVES.get(flag.field)
            before = f"--strategy {strategy} " if strategy else ""
            before += "--engine slurm " if flag.field == "nodes" else ""
            RunOptions.parse(f"{before}{flag.name} {value}")
