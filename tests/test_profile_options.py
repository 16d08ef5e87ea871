"""The steps that ``--profile`` names, and errors for others."""

from __future__ import annotations

import pytest

from nbmgpu.comparison.request import COMPARE, SCALE
from nbmgpu.errors import OptionError
from nbmgpu.options.parsing import parse_line
from nbmgpu.options.profile_options import MAX_STEPS, ProfiledSteps
from nbmgpu.options.run_options import DEFAULTS, RunOptions


@pytest.mark.parametrize(
    ("given", "suggested"),
    [
        ("7", "7-7"),
        ("0-3", "1-3"),
        ("10-5", "5-10"),
        ("5:10", "5-10"),
        ("1-51", "1-50"),
        ("steps", "5-10"),
        ("-5", "5-5"),
        ("9" * 30, "999999-999999"),
    ],
)
def test_an_error_suggests_steps_that_can_be_profiled(given, suggested):
    with pytest.raises(OptionError) as error:
        RunOptions.parse(f"--profile={given}")
    text = str(error.value)
    assert f"{given!r} does not name the steps to profile" in text
    assert f"at most {MAX_STEPS} steps" in text
    line = text.splitlines()[-1].removeprefix("Try: %%mgpu ")
    assert RunOptions.parse(line).profile == suggested


def test_python_values_are_those_of_the_line():
    assert RunOptions.of(profile=True) == RunOptions.parse("--profile")
    assert RunOptions.of(profile=False) == RunOptions.of(profile=None) == RunOptions()
    assert RunOptions.of(profile="1-2").line() == "--strategy ddp --profile 1-2"
    with pytest.raises(OptionError, match="does not name the steps"):
        RunOptions.of(profile=(5, 10))


def test_steps_are_parsed():
    assert ProfiledSteps.parse("5-10") == ProfiledSteps(5, 10)
    assert str(ProfiledSteps(1, MAX_STEPS)) == "1-50"


def test_a_comparison_is_not_profiled():
    _, problems = parse_line("--profile", COMPARE, DEFAULTS)
    assert problems[0].what == "%%mgpu compare does not accept --profile"


def test_no_flag_is_both_refused_and_accepted_by_a_comparison():
    for table in (COMPARE, SCALE):
        assert not table.unsupported.keys() & table.by_name.keys()
