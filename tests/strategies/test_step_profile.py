"""``--profile`` on real ranks: traces, phases and parts of a step under each strategy."""

from __future__ import annotations

import gzip
import json
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nbmgpu

TRAIN = """
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
STEPS = 12
"""Optimizer steps of the cell."""

PHASES = ("nbmgpu: backward", "nbmgpu: reduce gradients", "nbmgpu: step")

NOT_IMPORTED = TRAIN + "import sys\nfound = [m for m in sys.modules if 'rank.profiling' in m]\n"
OWN_PROFILER = """
with torch.profiler.profile() as profiler:
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
found = [event.key for event in profiler.key_averages()]
del profiler
"""
OWN_PROFILER_LATER = TRAIN + """
    if len(losses) == {step}:
        with torch.autograd.profiler.profile() as profiler:
            model(x)
        found = [event.key for event in profiler.key_averages()]
        del profiler
"""  # fmt: skip
TWO_OPTIMIZERS = """
for x, y in loader:
    for each in optimizers:
        each.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    for each in optimizers:
        each.step()
"""


def notebook(**more):
    """Return what the cells read."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    model.append(nn.Linear(64, 4))
    data = TensorDataset(torch.randn(STEPS * 8, 16), torch.randint(0, 4, (STEPS * 8,)))
    return {
        "nn": nn, "torch": torch, "model": model, "losses": [],
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loader": DataLoader(data, batch_size=8),
    } | more  # fmt: skip


def trained(cell=TRAIN, given=None, **options):
    """Run a cell on two ranks; return the run and what the cell has left."""
    names = notebook() if given is None else given
    run = nbmgpu.run(cell, names, **{"gpus": 2, "cpu": True} | options)
    return run, names


def trace_names(run, rank):
    """Return how often each name occurs in the trace of a rank."""
    with gzip.open(run.profile.rows[rank].trace) as file:
        events = json.load(file)["traceEvents"]
    return Counter(event.get("name") for event in events if event.get("ph") == "X")


def assert_profiled(run, steps="5-10", count=6):
    """Check the rows and traces of both ranks; return the names of the trace of rank 0."""
    rows = run.profile.rows
    assert [(row.rank, row.steps) for row in rows] == [(0, steps), (1, steps)]
    for row in rows:
        parts = [row.compute, row.communication, row.data, row.host]
        assert sum(parts) == pytest.approx(row.step_time)
        assert min(*parts, row.hidden) >= 0
        assert min(row.compute, row.data, row.host) > 0
        names = trace_names(run, row.rank)
        assert {name: names[name] for name in PHASES} == dict.fromkeys(PHASES, count)
        first = int(steps.partition("-")[0])
        wanted = [f"ProfilerStep#{step}" for step in range(first, first + count)]
        assert [names[name] for name in wanted] == [1] * count
        # A pass begins in its first step; the loader is asked once more after its last batch.
        assert names["nbmgpu: next batch"] in (count, count + 1)
        recorded = sum(names[name] for name in names if name.startswith("ProfilerStep"))
        assert recorded == count  # none that has begun when the cell ended
    left = [path.name for path in run.folder.iterdir() if "trace_" in path.name]
    assert sorted(left) == ["trace_rank0.json.gz", "trace_rank1.json.gz"]
    return trace_names(run, 0)


@pytest.mark.parametrize(
    ("strategy", "collectives"),
    [
        ("none", ()),
        ("ddp", ("nbmgpu: all-reduce",)),
        ("zero1", ("nbmgpu: all-reduce", "nbmgpu: all-gather")),
        ("zero2", ("nbmgpu: all-gather", "nbmgpu: reduce-scatter")),
        ("fsdp", ("nbmgpu: all-gather", "nbmgpu: reduce-scatter")),
        ("tp", ("gloo:all_reduce",)),
        ("pp", ("gloo:send", "gloo:recv")),
        ("deepspeed_stage_1", ("gloo:all_reduce", "gloo:all_gather")),
        ("deepspeed_stage_2", ("gloo:all_reduce", "gloo:all_gather")),
        ("deepspeed_stage_3", ("gloo:all_gather",)),
    ],
)
def test_traces_and_parts_of_a_strategy(strategy, collectives):
    if strategy.startswith("deepspeed"):
        pytest.importorskip("deepspeed")
    run, _ = trained(strategy=strategy, profile=True)
    names = assert_profiled(run)
    assert all(names[name] >= 6 for name in collectives), names
    for row in run.profile.rows:
        assert (row.communication > 0) == bool(collectives)


@pytest.mark.parametrize("options", [{"exact": "always"}, {"compile": True}], ids=str)
def test_traces_with_other_options(options):
    run, _ = trained(profile=True, **options)
    assert_profiled(run)


def test_a_profiled_run_has_the_numbers_of_another():
    run, names = trained(profile="2-3")
    assert_profiled(run, "2-3", 2)
    plain, others = trained()
    assert names["losses"] == others["losses"]
    assert plain.profile.rows == []
    weights = zip(names["model"].parameters(), others["model"].parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)


def test_the_first_step_can_be_profiled():
    run, _ = trained(profile="1-2")
    assert_profiled(run, "1-2", 2)


def test_a_run_without_the_option_has_nothing_of_it():
    run, names = trained(NOT_IMPORTED)
    assert names["found"] == []
    assert not list(run.folder.glob("*trace*"))


def test_a_cell_that_is_shorter_says_that_nothing_was_profiled():
    run, _ = trained(profile="13-14")
    text = run.view.notices["not-profiled"].text
    assert "--profile 13-14: the cell took 12 optimizer steps, so that nothing was profiled" in text
    assert text.endswith("Try: --profile 5-10")
    assert run.profile.rows == []
    assert not list(run.folder.glob("*trace*"))


def test_a_cell_that_ends_within_the_steps_has_a_profile_of_those_taken():
    run, _ = trained(profile="11-20")
    assert_profiled(run, "11-12", 2)


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(OWN_PROFILER, id="around the loop"),
        pytest.param(OWN_PROFILER_LATER.format(step=2), id="before the profiled steps"),
        pytest.param(OWN_PROFILER_LATER.format(step=4), id="before the first profiled step"),
        pytest.param(OWN_PROFILER_LATER.format(step=7), id="within the profiled steps"),
    ],
)
def test_a_profiler_of_the_cell_has_precedence(cell):
    run, names = trained(cell, profile=True)
    assert "aten::linear" in names["found"]
    assert "a profiler of its own" in run.view.notices["profiler-of-cell"].text
    assert run.profile.rows == []
    assert not list(run.folder.glob("*trace*"))


def test_a_profiler_of_the_cell_after_the_profiled_steps_is_not_in_the_way():
    run, names = trained(OWN_PROFILER_LATER.format(step=11), profile=True)
    assert "aten::linear" in names["found"]
    assert "profiler-of-cell" not in run.view.notices
    assert_profiled(run)


def test_several_optimizers_on_a_batch_take_one_step():
    given = notebook()
    layers = [layer for layer in given["model"] if isinstance(layer, nn.Linear)]
    given["optimizers"] = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in layers]
    del given["optimizer"]
    run, _ = trained(TWO_OPTIMIZERS, given, profile="3-4")
    rows = run.profile.rows
    assert [row.steps for row in rows] == ["3-4", "3-4"]
    names = trace_names(run, 0)
    assert (names["nbmgpu: backward"], names["nbmgpu: step"]) == (2, 6)


@pytest.mark.parametrize("after", [0, 6], ids=["at once", "after it has written traces"])
def test_a_cell_that_starts_again_has_the_profile_of_its_second_run(after):
    cell = TRAIN.replace("model(x)", f"dropped(model(x)) if len(losses) >= {after} else model(x)")
    run, names = trained("dropped = nn.Dropout()\n" + cell, profile="1-2")
    assert "restarted" in run.view.notices
    assert len(names["losses"]) == STEPS
    assert_profiled(run, "1-2", 2)


def test_ranks_that_are_held_profile_each_cell_that_asks():
    given = notebook()
    try:
        first, _ = trained(TRAIN, given, hold=True, profile="2-3")
        second, _ = trained(TRAIN, given, hold=True)
        third, _ = trained(TRAIN, given, hold=True, profile="3-4")
    finally:
        nbmgpu.release(discard=True)
    assert_profiled(first, "2-3", 2)
    assert second.profile.rows == []
    assert_profiled(third, "3-4", 2)
