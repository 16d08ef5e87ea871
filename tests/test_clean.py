"""``%mgpu clean``: old and large runs are removed, others stay."""

import time

import pytest

from nbmgpu.errors import OptionError
from nbmgpu.frontend.clean_command import clean_text
from nbmgpu.frontend.command_line import main
from nbmgpu.runs.folder import COLLECTED_FILE
from nbmgpu.runs.run import list_runs

DAY = 86400


@pytest.fixture
def runs(staged):
    """Finished runs by name: an old one, an old one with a tag, a new one with 2 MiB."""

    def finished(age, tag=(), logged=0):
        played = staged(1, created=time.time() - age, values={"tag": list(tag)})
        played.start()
        played.finish()
        played.close()
        played.run.log_path(0).write_bytes(b"x" * logged)
        (played.run.folder / COLLECTED_FILE).touch()
        return played.run

    return {
        "old": finished(8 * DAY),
        "tagged": finished(9 * DAY, ["kept"]),
        "large": finished(DAY / 2, logged=2 << 20),
    }


def left():
    return {run.id for run in list_runs()}


def test_without_criteria_sizes_are_shown_and_all_stay(runs):
    text = clean_text("")
    assert text.startswith("3 runs with 2.")
    assert text.endswith("Try: %mgpu clean --older 7d --keep-tagged")
    assert len(left()) == 3


def test_old_runs_are_removed_except_those_with_a_tag(runs):
    preview = clean_text("--older 7d --dry-run")
    assert preview.startswith("Would remove 2 runs with ")
    assert runs["old"].id in preview
    assert len(left()) == 3
    text = clean_text("--older 7d --keep-tagged")
    assert text.startswith("Removed 1 run with ")
    assert "2 runs with 2." in text
    assert left() == {runs["tagged"].id, runs["large"].id}


def test_all_criteria_must_be_met(runs):
    clean_text("--older 7d --larger 1M")
    assert len(left()) == 3
    clean_text("--larger 1M")
    assert left() == {runs["old"].id, runs["tagged"].id}


def test_active_runs_and_those_not_written_back_stay(runs, staged):
    active = staged(1, created=time.time() - 30 * DAY)
    active.start()
    (runs["old"].folder / COLLECTED_FILE).unlink()
    text = clean_text("--older 7d")
    assert "1 run stays: %mgpu attach writes the results back" in text
    assert left() == {active.run.id, runs["old"].id, runs["large"].id}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--older 7", "'7' is not an age.*Try: %mgpu clean --older 7d$"),
        ("--larger big", "'big' is not a size.*--larger 100M"),
        ("--old 7d", "There is no flag --old.*The closest is --older"),
        ("7", "'7' is not a flag"),
        ("--older", "--older has no value"),
    ],
)
def test_a_wrong_line_is_corrected(runs, line, says):
    with pytest.raises(OptionError, match=f"(?s){says}"):
        clean_text(line)
    assert len(left()) == 3


def test_the_command_of_a_terminal(runs, capsys):
    assert main(["clean", "--older", "7d", "--keep-tagged"]) == 0
    assert capsys.readouterr().out.startswith("Removed 1 run")
    assert main(["clean", "--older", "7"]) == 1
    assert "Try: nbmgpu clean --older 7d" in capsys.readouterr().err
