"""Names, tags and notes of runs."""

import json

import pytest

from nbmgpu.errors import OptionError
from nbmgpu.options.run_options import RunOptions
from nbmgpu.report.digest import line_of
from nbmgpu.runs.labels import LABELS_FILE, RunLabels


def test_options_name_and_tag_a_run(staged):
    options = RunOptions.parse("--name 'small lr' --tag sweep,mnist best")
    assert (options.name, options.tag) == ("small lr", ("sweep", "mnist", "best"))
    assert RunOptions.parse(options.line()) == options
    run = staged(1, values={"name": options.name, "tag": list(options.tag)}).run
    assert run.labels == RunLabels("small lr", ["sweep", "mnist", "best"])


def test_tags_may_be_given_one_by_one():
    assert RunOptions.parse("--tag a --gpus 2 --tag b c").tag == ("a", "b", "c")


def test_labels_change_and_what_is_not_given_stays(staged):
    run = staged(1, values={"name": "a", "tag": ["x"]}).run
    assert run.label(note=" two\nlines ") == RunLabels("a", ["x"], "two\nlines")
    assert run.label(name="", tags=["y", " y ", ""]).tags == ["y"]
    assert run.labels == RunLabels("", ["y"], "two\nlines")
    assert run.label(tags="a, b").tags == ["a", "b"]


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ({"name": "x" * 81}, "at most 80 characters, and this one has 81.\nTry: " + "x" * 80),
        ({"name": "a\nb"}, "one line.\nTry: a b"),
        ({"tags": ["two words"]}, "'two words' is not a tag.*\nTry: two-words"),
        ({"tags": ["a,b"]}, "is not a tag"),
        ({"tags": ["x" * 41]}, "at most 40 characters"),
        ({"tags": [str(n) for n in range(21)]}, "21 tags are more than 20"),
        ({"note": "x" * 10_001}, "at most 10,000 characters"),
    ],
)
def test_labels_that_cannot_be_shown_are_rejected(staged, labels, says):
    run = staged(1).run
    with pytest.raises(OptionError, match=f"(?s){says}"):
        run.label(**labels)
    assert not (run.folder / LABELS_FILE).exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"name": 1}', '{"tags": "ab"}', '{"a": 1}'])
def test_a_damaged_file_is_as_none(staged, content):
    run = staged(1, values={"name": "a"}).run
    (run.folder / LABELS_FILE).write_text(content)
    assert run.labels == RunLabels("a")


def test_a_cached_entry_has_the_current_labels(staged):
    played = staged(1, values={"name": "first"})
    played.start()
    played.finish()
    played.close()
    assert line_of(played.run).labels.name == "first"
    played.run.label("second", ["kept"])
    assert line_of(played.run).labels == RunLabels("second", ["kept"])
    assert json.loads((played.run.folder / "line.json").read_text())["line"]["labels"]["name"] == (
        "first"  # so that a label does not make all events be read again
    )


def test_options_that_are_not_labels_are_corrected():
    with pytest.raises(OptionError, match="A tag has at most 40 characters"):
        RunOptions.parse(f"--tag {'x' * 50}")
    with pytest.raises(OptionError, match="one line"):
        RunOptions.of(name="a\nb")
    with pytest.raises(OptionError, match="21 tags are more than 20"):
        RunOptions.of(tag=[str(number) for number in range(21)])


def test_none_is_no_label_and_names_may_be_of_any_script():
    options = RunOptions.of(name=None, tag=None)
    assert (options.name, options.tag) == ("", ())
    for name in (
        "\N{FAMILY} \N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}",
        "\u0645\u06cc\u200c\u062e",
        "a\xa0b",
    ):
        assert RunOptions.of(name=name).name == name
