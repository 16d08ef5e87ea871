"""Formatting of numbers, durations, devices, exit codes and terminal output."""

import math

import pytest

from nbmgpu.report.text_format import clock, coloured, device_names, exit_word, number, plain, span


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (0.1, "0.1"), (1 / 3, "0.3333"), (123.456, "123.5"), (999.96, "1000"),
        (1234.5, "1,234"), (-5678.9, "-5,679"),
        (1.25e-5, "1.25e-5"), (-2e-100, "-2e-100"), (3e9, "3e9"),
        (math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "nan"),
    ],
)  # fmt: skip
def test_number(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0.0 s"), (12.34, "12.3 s"), (185, "3:05"), (3723, "1:02:03")]
)
def test_clock(seconds, text):
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.00035, "0.35 ms"), (0.0123, "12 ms"), (1.234, "1.23 s"), (90, "1:30")]
)
def test_span(seconds, text):
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        (["cpu"], "cpu"), (["cpu", "cpu"], "cpu"), (["cuda:0"], "cuda:0"),
        (["cuda:0", "cuda:1", "cuda:2"], "cuda:0-2"), (["cuda:0", "cuda:2"], "cuda:0, cuda:2"),
        (["cuda:0", "cpu"], "cuda:0, cpu"), ([], ""),
    ],
)  # fmt: skip
def test_device_names(devices, text):
    assert device_names(devices) == text


@pytest.mark.parametrize(("code", "word"), [(1, "exit 1"), (-9, "SIGKILL"), (-99, "signal 99")])
def test_exit_word(code, word):
    assert exit_word(code) == word


def test_lone_surrogates_are_replaced():
    assert plain("a\udcffb").encode() == b"a?b"
    assert coloured("a\udcffb").encode() == b"a?b"


TERMINAL = "\x1b[31mred\x1b[0m\n10%\r50%\r100%\r\n\x1b]0;title\x07<script>é ✓\n\x00\x1b[2K!"


def test_plain_text_is_that_of_a_terminal():
    assert plain(TERMINAL) == "red\n100%\n<script>é ✓\n!"


def test_coloured_text_keeps_only_colours():
    assert coloured(TERMINAL) == "\x1b[31mred\x1b[0m\n100%\n<script>é ✓\n!"
