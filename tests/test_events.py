"""Events: encoding, decoding and reading while a file is written."""

import dataclasses
import json
import math
import typing

import pytest

from nbmgpu.runs.event_file import EventTail, EventWriter
from nbmgpu.runs.event_lines import decode, encode
from nbmgpu.runs.event_types import EVENT_TYPES
from nbmgpu.runs.events import Metrics, Notice

SAMPLES = {
    str: "grün <b>\n",
    int: 3,
    float: 0.5,
    bool: True,
    list[int]: [1, 2],
    list[float]: [0.5, float("inf")],
    list[str]: ["a", "b"],
    dict[str, typing.Any]: {"text/plain": "x"},
    dict[str, str]: {"Net.centre": "00"},
}


def sample(cls):
    hints = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    return cls(**{n: SAMPLES.get(hints[n]) or typing.get_args(hints[n])[0] for n in names})


@pytest.mark.parametrize("cls", EVENT_TYPES.values(), ids=EVENT_TYPES.keys())
def test_events_are_decoded_as_encoded(cls):
    event = sample(cls)
    line = encode(event)
    assert "\n" not in line
    assert decode(line) == event


def test_nan_is_decoded_as_encoded():
    event = Metrics(time=1.0, rank=0, name="loss", steps=[1], values=[float("nan")], weights=[1.0])
    value = decode(encode(event)).values[0]
    assert math.isnan(value)


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "unknown", "time": 1}',
        '{"kind": "not',
        '{"kind": "notice", "time": 1, "rank": 0, "of": "an older version"}',
        '{"kind": [], "time": 1}',
        "[1]",
        "3",
    ],
)
def test_invalid_lines_are_skipped(line):
    assert decode(line) is None


def test_unknown_fields_are_ignored():
    event = Notice(time=1.0, rank=0, topic="t", text="x")
    fields = json.loads(encode(event)) | {"colour": "blue"}
    assert decode(json.dumps(fields)) == event


def test_a_reader_waits_for_the_rest_of_a_line(tmp_path):
    path = tmp_path / "rank-0.jsonl"
    tail = EventTail(path)
    assert tail.read() == []
    writer = EventWriter(path, 0)
    writer.emit(Notice, topic="a", text="first")
    line = encode(Notice(time=2.0, rank=0, topic="b", text="zweite ü")).encode() + b"\n"
    with path.open("ab") as file:
        file.write(line[:-5])
        file.flush()
        assert [e.topic for e in tail.read()] == ["a"]
        file.write(line[-5:])
    assert [e.text for e in tail.read()] == ["zweite ü"]
    assert tail.read() == []
    writer.close()
