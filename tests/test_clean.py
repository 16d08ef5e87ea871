"""``%mgpu clean``: old and large runs are removed, others stay."""

import time

import pytest
import staged as staged_module

from nbmgpu.errors import OptionError
from nbmgpu.frontend.clean_command import clean_text
from nbmgpu.frontend.command_line import main
from nbmgpu.runs.folder import COLLECTED_FILE
from nbmgpu.runs.run_list import list_runs

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
    assert "nothing is removed" in clean_text("--keep-tagged")
    text = clean_text("--older 7 days --keep-tagged")
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
    assert f"{runs['old'].id} stays: %mgpu attach {runs['old'].id} writes its results back." in text
    assert left() == {active.run.id, runs["old"].id, runs["large"].id}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--older 7 years", "'7' is not an age.*An age is a number and a unit"),
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


def test_results_of_a_run_whose_kernel_is_gone_stay_until_they_are_written_back(staged, tmp_path):
    bundle = tmp_path / "bundle"
    bundle.touch()
    played = staged(
        1, created=time.time() - 8 * DAY, bundle=str(bundle), pid=2**30, create_time=1.0
    )
    played.start()
    played.finish()
    played.close()
    assert "stays: %mgpu attach" in clean_text("--older 7d")
    assert "stays: %mgpu attach" in clean_text("--older 7d --dry-run")
    assert left() == {played.run.id}
    (played.run.folder / COLLECTED_FILE).touch()
    assert clean_text("--older 7d").startswith("Removed 1 run")


def test_a_run_of_another_machine_stays_unless_its_events_say_that_it_is_over(staged, monkeypatch):
    fields = {"created": time.time() - 8 * DAY, "host": "elsewhere", "pid": 2**30}
    active, ended = (staged(1, create_time=1.0, **fields) for _ in range(2))
    for played in (active, ended):
        monkeypatch.setattr(
            staged_module, "own_process", lambda: {"pid": 2**30, "create_time": 1.0}
        )
        played.start()
    ended.finish()
    clean_text("--older 7d")
    assert left() == {active.run.id}
