"""Checks of how runs end: errors, interrupts, kills, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import nbmgpu
from nbmgpu.devices.probe import probe
from nbmgpu.errors import RankKilledError, RunTimeoutError
from nbmgpu.runs.run import Run
from nbmgpu.system.processes import process_is_alive

from .cells import MLP, TRAIN
from .check import Check, Finding
from .comparison import Cell, notebook, run_on_ranks
from .setting import Setting

ENDLESS = "import itertools\nfor _ in itertools.count():" + TRAIN.replace("\n", "\n    ")
PATIENCE = 60
"""Seconds for a run to start, and to end."""

LEFT = 64 << 20
"""Bytes of a GPU that may be in use after a run beyond those before it."""


def checks() -> list[Check]:
    """Return the checks of this group."""
    functions: dict[str, Callable[[Setting], Finding]] = {
        "an exception names the line": _exception,
        "out of memory": _out_of_memory,
        "an index out of range in a GPU kernel": _device_assert,
        "a stop returns what was trained": _stop,
        "a stop during a collective": _stop_in_collective,
        "a killed rank": _kill,
        "a time limit": _timeout,
    }
    return [Check("failures", name, function) for name, function in functions.items()]


def _names(setting: Setting) -> dict[str, object]:
    return notebook(Cell("", MLP, TRAIN), setting)


def _exception(setting: Setting) -> Finding:
    source = "a = 1\nb = a / 0\n"
    return _expect(setting, source, ZeroDivisionError, "line 2 of the cell: b = a / 0")


def _out_of_memory(setting: Setting) -> Finding:
    import torch

    setting.require_gpu()
    source = "big = torch.empty(1 << 45, device=device)"
    return _expect(setting, source, torch.OutOfMemoryError, "line 1 of the cell")


def _device_assert(setting: Setting) -> Finding:
    setting.require_gpu()
    source = "n = torch.tensor([99], device=device)\nvalue = torch.ones(3, device=device)[n].item()"
    # Other devices may check indices on the host, and raise an IndexError.
    kind = RuntimeError if setting.on_cuda else Exception
    found = _expect(setting, source, kind, "line 2 of the cell")
    _expect(setting, "1 / 0", ZeroDivisionError, "line 1 of the cell")  # the kernel is unharmed
    return found


def _expect(setting: Setting, source: str, kind: type[Exception], text: str) -> Finding:
    """Check that ``source`` raises ``kind`` with ``text`` in its cause, and leaves nothing."""
    names = _names(setting)
    before = _gpu_memory(setting)
    try:
        run_on_ranks(source, names, setting)
    except kind as error:
        cause = str(error.__cause__)
        assert text in cause, f"{text!r} is not in the error: {cause[:200]}"
    else:
        raise AssertionError(f"no {kind.__name__} was raised")
    run = nbmgpu.last_run
    assert run is not None
    return _nothing_left(run, setting, before)


def _stop(setting: Setting) -> Finding:
    names = _names(setting)
    before = _gpu_memory(setting)
    run = _start(setting, names, ENDLESS)
    return _stopped(run, setting, before)


def _stop_in_collective(setting: Setting) -> Finding:
    source = """
import time
import torch.distributed as dist
nothing = torch.zeros(1, device=device)
print("waiting", flush=True)
if dist.get_rank() == 0:
    dist.all_reduce(nothing)
    torch.ones(1, device=device).item() if device.type == "cpu" else torch.accelerator.synchronize()
else:
    time.sleep(600)
"""
    before = _gpu_memory(setting)
    run = _start(setting, _names(setting), source, lambda run: "waiting" in run.log(0))
    return _stopped(run, setting, before)


def _stopped(run: Run, setting: Setting, before: int) -> Finding:
    asked = time.monotonic()
    run.stop()
    try:
        nbmgpu.attach(run.id)
    except KeyboardInterrupt:
        pass
    seconds = time.monotonic() - asked
    assert run.state in ("stopped", "failed"), f"the run is {run.state}"
    found = _nothing_left(run, setting, before)
    return Finding(f"{run.state} after {seconds:.1f} s; {found.text}", {"seconds": seconds})


def _kill(setting: Setting) -> Finding:
    before = _gpu_memory(setting)
    run = _start(setting, _names(setting), ENDLESS)
    process = run.view.ranks[1].process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    killed = time.monotonic()
    try:
        nbmgpu.attach(run.id)
    except RankKilledError as error:
        message = str(error)
    else:
        raise AssertionError("no RankKilledError was raised")
    assert "Rank 1 of 2 was ended by SIGKILL" in message, message
    seconds = time.monotonic() - killed
    found = _nothing_left(run, setting, before)
    return Finding(f"ended after {seconds:.1f} s; {found.text}", {"seconds": seconds})


def _timeout(setting: Setting) -> Finding:
    before = _gpu_memory(setting)
    try:
        run_on_ranks(ENDLESS, _names(setting), setting, timeout=8)
    except RunTimeoutError:
        run = nbmgpu.last_run
        assert run is not None
        return _nothing_left(run, setting, before)
    raise AssertionError("no RunTimeoutError was raised")


def _start(
    setting: Setting,
    names: dict[str, object],
    source: str,
    begun: Callable[[Run], bool] = lambda run: len(run.view.curves.get("loss") or ()) > 5,
) -> Run:
    """Start a run in the background and wait until it has begun."""
    run = nbmgpu.run(source, names, **setting.options(2), background=True)
    assert run is not None
    until = time.monotonic() + PATIENCE
    while not begun(run):
        assert not run.over, f"the run is {run.state}"
        assert time.monotonic() < until, f"the run has not begun in {PATIENCE} s"
        time.sleep(0.1)
        run.refresh()
    return run


def _nothing_left(run: Run, setting: Setting, before: int) -> Finding:
    """Check that no process of the run is left, nor memory of a GPU."""
    until = time.monotonic() + 10
    processes = [rank.process for rank in run.view.ranks if rank.process is not None]
    while left := [p.pid for p in processes if process_is_alive(p.pid, p.create_time)]:
        if time.monotonic() > until:
            break
        time.sleep(0.1)
    assert not left, f"processes of the run are left: {left}"
    while (more := _gpu_memory(setting) - before) > LEFT and time.monotonic() < until:
        time.sleep(0.1)
    assert more <= LEFT, f"{more >> 20} MiB of GPU memory are still in use"
    return Finding("no process and no GPU memory left" if setting.on_cuda else "no process left")


def _gpu_memory(setting: Setting) -> int:
    """Return the bytes that are in use on all GPUs; 0 where no driver counts them."""
    if not setting.on_cuda:
        return 0
    return sum(gpu.memory_total - gpu.memory_free for gpu in probe().gpus)
