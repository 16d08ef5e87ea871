"""Each moment of a profiled step belongs to one part, and the parts add up to its time."""

from __future__ import annotations

import random

import pytest

from nbmgpu.rank.profiling.phases import ALL_REDUCE, BACKWARD, NEXT_BATCH
from nbmgpu.rank.profiling.step_parts import TracedSpan, step_parts


def span(name, start, end, **fields):
    """Return a span between two milliseconds."""
    return TracedSpan(name, 1000 * start, 1000 * end, **fields)


def parts(*spans, steps=1, on_accelerator=False):
    """Return the parts in milliseconds: compute, communication, hidden, data, host."""
    found = step_parts(spans, steps, on_accelerator)
    names = ("compute", "communication", "hidden", "data", "host")
    return tuple(round(1000 * getattr(found, name), 6) for name in names)


STEP = span("ProfilerStep*", 0, 100)


def test_operations_compute_and_their_wrappers_do_not():
    nested = span("aten::linear", 10, 30), span("aten::addmm", 12, 28)
    wrappers = span(BACKWARD, 0, 90), span("autograd::engine::evaluate_function: Addmm", 40, 90)
    compiled = span("## Call CompiledFxGraph abc ##", 50, 60)
    assert parts(STEP, *nested, *wrappers, compiled) == (30, 0, 0, 0, 70)


def test_what_a_collective_or_a_loader_computes_is_theirs():
    loader = span(NEXT_BATCH, 0, 20), span("aten::stack", 5, 15)
    shared = span(ALL_REDUCE, 50, 70), span("aten::sum", 60, 70)
    assert parts(STEP, *loader, *shared) == (0, 20, 0, 20, 60)


def test_a_collective_beside_an_operation_is_hidden():
    background = span("gloo:all_reduce", 20, 60, thread=7, is_async=True)
    assert parts(STEP, background, span("aten::mm", 10, 50)) == (40, 10, 30, 0, 50)


def test_operations_of_several_threads_count_once():
    spans = [span("aten::mm", 0, 60, thread=1), span("aten::mm", 40, 80, thread=2)]
    waiting = span("c10d::allreduce_", 0, 50, thread=1)
    assert parts(STEP, *spans) == (80, 0, 0, 0, 20)
    # What thread 1 does within a collective is not computing; thread 2 computes beside it.
    assert parts(STEP, *spans, waiting) == (40, 40, 10, 0, 20)


def test_on_an_accelerator_kernels_count_and_operations_of_the_host_do_not():
    host = span("aten::mm", 0, 90), span("c10d::allreduce_", 0, 90), span(NEXT_BATCH, 70, 100)
    kernel = span("ampere_sgemm_128x64", 10, 50, on_device=True)
    copy = span("Memcpy HtoD (Pinned -> Device)", 75, 80, on_device=True)
    nccl = span("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 30, 70, on_device=True)
    assert parts(STEP, *host, kernel, copy, nccl, on_accelerator=True) == (45, 20, 20, 25, 10)
    gloo = span("gloo:all_reduce", 50, 65, is_async=True)  # of ranks that share a GPU
    assert parts(STEP, kernel, gloo, on_accelerator=True) == (40, 15, 0, 0, 45)


def test_only_complete_steps_count():
    steps = [span("ProfilerStep#5", 0, 10), span("ProfilerStep#6", 12, 22)]
    cut = span("ProfilerStep#7", 22, 30)
    spans = [*steps, cut, span("aten::mm", 5, 30), span("ProfilerStep#5", 0, 9, on_device=True)]
    assert parts(*spans, steps=2) == ((5 + 10) / 2, 0, 0, 0, 2.5)
    assert step_parts([], 1, False) is None
    assert step_parts(spans, 0, False) is None


@pytest.mark.parametrize("on_accelerator", [False, True])
def test_parts_add_up(on_accelerator):
    draw = random.Random(0)
    names = ["aten::mm", "gloo:send", "c10d::send", NEXT_BATCH, ALL_REDUCE, BACKWARD, "nccl"]
    for _ in range(200):
        spans = [STEP, span("ProfilerStep*", 101, 150)]
        for _ in range(draw.randrange(30)):
            start = draw.uniform(-10, 150)
            end = start + draw.expovariate(0.1)
            name, thread, kind = draw.choice(names), draw.randrange(2), draw.randrange(3)
            fields = {"thread": thread, "on_device": kind == 1, "is_async": kind == 2}
            spans.append(span(name, start, end, **fields))
        found = step_parts(spans, 2, on_accelerator)
        total = [found.compute, found.communication, found.data, found.host]
        assert min(*total, found.hidden) >= -1e-12
        assert sum(total) == pytest.approx(found.step_time) == pytest.approx(0.149 / 2)
        assert found.hidden <= found.compute + 1e-12
