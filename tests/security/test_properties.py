"""Whatever a cell, an event file, a log, a line or an address has, no exception is not nbmgpu's.

``tools/fuzz.py`` gives the same targets millions of inputs.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator

import pytest
from fuzz_targets import (
    OPTION_WORDS,
    TOKENS,
    Mutator,
    Targets,
    cache_slow_functions,
    stdlib_sources,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbmgpu.cell import read_cell
from nbmgpu.rank.store.messages import Decoder
from nbmgpu.report.snapshot import Snapshot
from nbmgpu.runs.event_lines import decode
from nbmgpu.runs.event_types import EVENT_TYPES
from nbmgpu.runs.record import RunRecord
from nbmgpu.runs.run import Run
from nbmgpu.server.run_folders import NoSuchRunError, open_run

SOURCES = stdlib_sources(60)
NAMES = st.text(max_size=5)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=3,
)
CONTROLS = ("gpus", "strategy", "mesh", "x")
FIELDS = sorted({name for cls in EVENT_TYPES.values() for name in cls.__dataclass_fields__})
EVENT_LINES = st.builds(
    lambda kind, fields: json.dumps({"time": 1.0, "rank": 0, **fields, "kind": kind}).encode(),
    st.sampled_from(sorted(EVENT_TYPES)),
    st.dictionaries(st.sampled_from(FIELDS), ANY_JSON, max_size=8),
)

few = settings(
    max_examples=200,
    deadline=None,
    derandomize=True,  # the same in each run: tools/fuzz.py looks for what is new
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Targets]:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("NBMGPU_RUNS", str(tmp_path_factory.mktemp("runs")))
        cache_slow_functions(patch)
        yield Targets()


@few
@given(source=st.text(max_size=200) | st.lists(st.sampled_from(TOKENS), max_size=12).map("".join))
def test_any_text_as_a_cell(targets, source):
    targets.cell(source)


@few
@given(seed=st.integers(0, 2**32))
def test_changed_sources_of_the_standard_library(targets, seed):
    targets.cell(Mutator(seed, {"cell": SOURCES}).text("cell"))


@few
@given(data=st.binary(max_size=300) | st.lists(EVENT_LINES, max_size=3).map(b"\n".join))
def test_any_bytes_as_events(targets, data):
    targets.events_alone(data)


@settings(few, max_examples=25)
@given(lines=st.lists(EVENT_LINES, max_size=4), seed=st.integers(0, 2**32))
def test_the_state_of_a_run_with_any_events(targets, lines, seed):
    targets.state(b"\n".join(lines))
    targets.state(Mutator(seed, {"events": [targets.events]}).data("events"))
    targets.launcher_state(Mutator(seed, {"events": [targets.launcher]}).data("events"))


@settings(few, max_examples=80)
@given(
    data=st.binary(max_size=400),
    first=st.integers(-5, 2**40),
    count=st.integers(-5, 2**40),
    search=st.text(max_size=4),
)
def test_any_bytes_as_a_log(targets, data, first, count, search):
    targets.log(data, first, count, search)


@few
@given(
    line=st.text(max_size=80) | st.lists(st.sampled_from(OPTION_WORDS), max_size=7).map(" ".join)
)
def test_any_line_of_options(targets, line):
    targets.options(line)


@settings(few, max_examples=40)
@given(
    line=st.lists(st.sampled_from(OPTION_WORDS), max_size=5).map(" ".join),
    controls=st.dictionaries(st.sampled_from(CONTROLS), ANY_JSON, max_size=3),
)
def test_any_controls_of_the_picker(targets, line, controls):
    targets.picker(line, controls)


@few
@given(name=st.text(max_size=60) | st.from_regex(r"\d{8}-\d{6}-[0-9a-z./%]{1,16}", fullmatch=True))
def test_any_address_of_a_run(targets, name):
    targets.route(name)


@settings(few, max_examples=40)
@given(
    data=st.binary(max_size=200),
    fields=st.dictionaries(st.sampled_from(sorted(RunRecord.__dataclass_fields__)), ANY_JSON),
    seed=st.integers(),
)
def test_any_record_and_list_entry(targets, data, fields, seed):
    record = json.loads(targets.record)
    for each in (data, json.dumps(record | fields).encode()):
        targets.record_of_run(each)
        targets.list_entry(each)
    targets.record_of_run(Mutator(seed, {"record": [targets.record]}).data("record"))


@few
@given(data=st.binary(max_size=100))
def test_any_bytes_to_the_store_server(data):
    decoder = Decoder()
    found = [part for at in range(0, len(data), 7) for part in decoder.feed(data[at : at + 7])]
    assert found == list(Decoder().feed(data))


# What the fuzzer has found.


@pytest.mark.parametrize("source", ["x = '\ud800'", "(" * 5000, "-" * 20_000 + "1", "x = 1\0"])
def test_a_cell_that_python_cannot_compile_is_a_syntax_error(source):
    with pytest.raises(SyntaxError):
        read_cell(source, {})


DAMAGED = [
    b"\xff\xfe", b"[" * 100_000, b"null", b'{"kind":"status"}',
    b'{"kind":["status"],"time":1,"rank":0}',
    b'{"kind":"exited","time":1.0,"rank":-1,"of_rank":"0","code":0}',
    b'{"kind":"exited","time":1.0,"rank":-1,"of_rank":0,"code":' + b"9" * 30 + b"}",
    b'{"kind":"status","time":"now","rank":0,"state":"running"}',
    b'{"kind":"status","time":1e999,"rank":0,"state":"running"}',
    b'{"kind":"status","time":1.0,"rank":0,"state":"flying"}',
    b'{"kind":"metrics","time":1,"rank":0,"name":"loss","steps":[1],"values":[],"weights":[1]}',
    b'{"kind":"metrics","time":1,"rank":0,"name":"loss","steps":["1"],"values":[1],"weights":[1]}',
]  # fmt: skip


@pytest.mark.parametrize("line", DAMAGED)
def test_what_is_no_event_is_skipped(targets, line):
    assert decode(line) is None
    targets.state(targets.events + line + b"\n" + targets.events)


def test_a_loss_may_be_nan():
    line = (
        b'{"kind":"metrics","time":1,"rank":0,"name":"x","steps":[1],"values":[NaN],"weights":[1]}'
    )
    assert decode(line) is not None


@pytest.mark.parametrize("rank", [-2, 2, 7])
def test_events_of_ranks_that_a_run_does_not_have_are_ignored(targets, rank):
    of_rank = rank if rank > 0 else -1
    lines = [
        b'{"kind":"status","time":9.0,"rank":%d,"state":"failed"}' % rank,
        b'{"kind":"exited","time":9.0,"rank":-1,"of_rank":%d,"code":1}' % of_rank,
    ]
    targets.run.events_path("rank-0").write_bytes(targets.events)
    before = Run(targets.run.folder)
    before.refresh()
    targets.run.events_path("rank-0").write_bytes(targets.events + b"\n".join(lines) + b"\n")
    run = Run(targets.run.folder)
    run.refresh()
    for found, was in zip(run.view.ranks, before.view.ranks, strict=True):
        assert (found.state, found.exited, found.failure) == (was.state, was.exited, was.failure)
    assert Snapshot(run).whole()


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", '{"options": {}}', "1"])
def test_a_damaged_record_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"run\.json|Expecting"):
        RunRecord.from_json(text)


def test_a_record_with_other_types_is_of_another_version(targets):
    record = json.loads(targets.record)
    with pytest.raises(ValueError, match="another version"):
        RunRecord.from_json(json.dumps(record | {"devices": 2}))
    (targets.run.folder / "run.json").write_text(json.dumps(record | {"created": "today"}))
    with pytest.raises(NoSuchRunError):
        open_run(targets.run.id)
    (targets.run.folder / "run.json").write_bytes(targets.record)
