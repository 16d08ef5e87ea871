"""Labels that Python composes are those that labextension/src/view/words.ts translates."""

import re
from pathlib import Path
from typing import get_args

import pytest

from nbmgpu.formatting import format_communication, format_count
from nbmgpu.kernel.batch_size import _line
from nbmgpu.options.run_options import RunOptions
from nbmgpu.report import text_format
from nbmgpu.report.progress import bars
from nbmgpu.runs.events import RankState, RunState, Verified

WORDS = (Path(__file__).parents[1] / "labextension" / "src" / "view" / "words.ts").read_text()

PATTERNS = [re.compile(text) for text in re.findall(r"/(\^.+\$)/s?,", WORDS)]


def is_translated(text):
    return any(pattern.match(text) for pattern in PATTERNS)


@pytest.mark.parametrize("state", sorted({*get_args(RunState), *get_args(RankState)}))
def test_states(state):
    assert re.search(rf"^    '?{text_format.state_word(state)}'?: trans", WORDS, re.MULTILINE)


@pytest.mark.parametrize("code", [1, -9, -99])
def test_exits(code):
    word = text_format.exit_word(code)
    assert word == "SIGKILL" or is_translated(word)


@pytest.mark.parametrize(
    ("strategy", "ranks", "accumulate"),
    [
        ("ddp", 1, 1),
        ("ddp", 1, 2),
        ("ddp", 2, 1),
        ("ddp", 2, 2),
        ("ddp", 3, 1),
        ("ddp", 3, 2),
        ("none", 2, 1),
    ],
)
def test_batches(strategy, ranks, accumulate):
    options = RunOptions(strategy=strategy, gpus=ranks, accumulate=accumulate)
    assert is_translated(_line(8, options, ranks))


def test_headlines_bars_and_counts(staged):
    played = staged(2)
    played.start()
    played.progress(1, 2, train_step=1)
    run = played.polled()
    assert is_translated(text_format.headline(run.record))
    labels = [bar.label for epochs in (0, 4) for bar in bars(run.view, epochs)]
    assert all(map(is_translated, labels)), labels
    assert is_translated(format_communication(1 << 20, 1))
    assert is_translated(format_communication(1 << 20, 2))
    assert is_translated(format_count(2, "core"))


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("is_whole", [True, False])
def test_what_was_verified(staged, steps, is_whole):
    played = staged(2)
    played.start()
    fields = {"steps": steps, "is_whole": is_whole, "reason": "time was up"}
    played.write(0, Verified(time=1.0, rank=0, **fields))
    text = text_format.verified(played.polled().view)
    compared = re.search(r"const COMPARED =\s*\"(.*)\";", WORDS)[1].replace(r"\\", "\\")
    assert is_translated(text) or re.match(rf"(all |first )?\d+ {compared}; then time was up", text)
