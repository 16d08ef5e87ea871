"""The heartbeat of a rank runs during the cell and ends with the rank."""

import sys
import threading
import time
import types
from pathlib import Path

import pytest
import torch

import nbmgpu
from nbmgpu.devices.nvidia import Gpu
from nbmgpu.devices.probe import Machine
from nbmgpu.rank.metrics import heartbeat
from nbmgpu.rank.metrics.heartbeat import GpuMonitor, HeartbeatThread, allocated_memory
from nbmgpu.rank.metrics.step_time import StepTimer, StepTimerWindow, tokens_in
from nbmgpu.report.curves import straggler
from nbmgpu.runs.event_file import EventTail, EventWriter
from nbmgpu.runs.events import Heartbeat
from nbmgpu.strategies.communication import counter


@pytest.fixture
def fast_heartbeat(tmp_path, monkeypatch):
    """Creates a fast heartbeat and the tail of its events."""
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.05)
    writer = EventWriter(tmp_path / "events", 3)
    log = tmp_path / "log"
    log.write_text("five!")
    tail = EventTail(tmp_path / "events")
    yield lambda device="cpu": (HeartbeatThread(writer, log, device), tail)
    writer.close()


def test_heartbeats_during_the_cell_and_once_at_the_end(fast_heartbeat):
    beat_thread, tail = fast_heartbeat()
    with beat_thread:
        deadline = time.monotonic() + 10
        beats = []
        while len(beats) < 3 and time.monotonic() < deadline:
            sum(range(100_000))
            beats += tail.read()
        assert "nbmgpu-heartbeat" in {thread.name for thread in threading.enumerate()}
    assert "nbmgpu-heartbeat" not in {thread.name for thread in threading.enumerate()}
    beats += tail.read()
    assert len(beats) >= 4
    assert {type(beat) for beat in beats} == {Heartbeat}
    last = beats[-1]
    assert (last.rank, last.step, last.logged) == (3, 0, 5)
    assert last.gpu == last.gpu_memory == -1
    assert any(beat.cpu > 20 for beat in beats)
    assert 10 << 20 < last.memory < last.memory_total
    time.sleep(0.2)
    assert tail.read() == []


def test_a_full_disk_does_not_stop_it(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.02)
    writer = EventWriter(Path("/dev/full"), 0)
    tried = []
    emit = writer.emit
    monkeypatch.setattr(writer, "emit", lambda *a, **k: [tried.append(a), emit(*a, **k)])
    with HeartbeatThread(writer, tmp_path / "log", "cpu"):
        deadline = time.monotonic() + 10
        while len(tried) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert len(tried) >= 3
    writer.close()


def test_a_heartbeat_takes_less_than_2_ms(fast_heartbeat):
    beat_thread, _ = fast_heartbeat()
    begun = time.process_time()
    for _ in range(100):
        beat_thread._beat()
    assert (time.process_time() - begun) / 100 < 0.002


def test_it_draws_no_random_numbers(fast_heartbeat):
    beat_thread, _ = fast_heartbeat()
    torch.manual_seed(0)
    expected = torch.rand(3).tolist()
    torch.manual_seed(0)
    with beat_thread:
        time.sleep(0.2)
        assert torch.rand(3).tolist() == expected


class TestStepTimer:
    def test_time_of_a_step_the_ranks_own_part_and_what_it_sends(self, monkeypatch):
        clock = [0.0]
        monkeypatch.setattr(time, "monotonic", lambda: clock[0])
        monkeypatch.setattr(counter, "sent", 0)
        monkeypatch.setattr(counter, "collectives", 0)
        timer, window = StepTimer(), StepTimerWindow()

        def step(number, own, together):
            clock[0] += own
            timer.begin_backward()
            clock[0] += together
            counter.count(100 * number)
            timer.end_backward(number)

        assert window.take(timer) == (0.0, 0.0, 0.0, 0.0)
        step(1, own=5.0, together=1.0)
        assert window.take(timer) == (0.0, 0.0, 0.0, 0.0)  # the first step includes the startup
        step(2, own=0.25, together=0.5)
        step(3, own=0.75, together=0.5)
        assert window.take(timer) == (1.0, 0.5, 250.0, 1.0)
        assert window.take(timer) == (0.0, 0.0, 0.0, 0.0)  # none since

    def test_several_backward_passes_of_a_step_count_as_one(self, monkeypatch):
        clock = [0.0]
        monkeypatch.setattr(time, "monotonic", lambda: clock[0])
        timer, window = StepTimer(), StepTimerWindow()
        for number in (1, 1, 2, 2):
            clock[0] += 1.0
            timer.begin_backward()
            timer.end_backward(number)
            if number == 1:
                window.take(timer)
        assert window.take(timer)[0] == pytest.approx(3.0)  # since the first pass of step 1


NVML = """
class Bytes:
    def __init__(self, used, total): self.used, self.total = used, total
class Rate:
    def __init__(self, gpu): self.gpu = gpu
"""


class TestGpuMonitor:
    """With a fake NVML, since there is no GPU."""

    @pytest.fixture
    def nvml(self, monkeypatch):
        module = types.ModuleType("pynvml")
        module.__spec__ = types.SimpleNamespace()
        exec(NVML, vars(module))
        module.nvmlInit = lambda: None
        module.nvmlDeviceGetHandleByUUID = lambda uuid: int(uuid[-1])
        module.nvmlDeviceGetMemoryInfo = lambda handle: module.Bytes(10 * handle, 100)
        module.nvmlDeviceGetUtilizationRates = lambda handle: module.Rate(20 * handle)
        monkeypatch.setitem(sys.modules, "pynvml", module)
        gpus = (Gpu(0, "one", uuid="GPU-1"), Gpu(1, "two", uuid="GPU-2"))
        monkeypatch.setattr(heartbeat, "probe", lambda: Machine(1, 1, gpus))
        return module

    @pytest.mark.usefixtures("nvml")
    def test_gpus_are_summed(self):
        assert GpuMonitor().usage() == {"gpu": 30.0, "gpu_memory": 30, "gpu_memory_total": 200}

    def test_a_mig_instance_has_memory_and_no_utilization(self, nvml):
        def unsupported(_handle):
            raise RuntimeError("Not Supported")

        nvml.nvmlDeviceGetUtilizationRates = unsupported
        assert GpuMonitor().usage()["gpu"] == -1
        assert GpuMonitor().usage()["gpu_memory"] == 30

    def test_a_driver_that_fails_counts_as_none(self, nvml):
        def broken():
            raise RuntimeError("Driver Not Loaded")

        nvml.nvmlInit = broken
        assert GpuMonitor().usage() == {}


def test_cuda_is_not_initialized_by_it():
    assert allocated_memory() == {}
    assert not torch.cuda.is_initialized()


@pytest.mark.parametrize(
    ("batch", "tokens"),
    [
        ({"input_ids": torch.zeros(4, 7, dtype=torch.long)}, 28),
        ({"input_ids": torch.zeros(7, dtype=torch.long)}, 0),
        ({"pixels": torch.zeros(4, 7)}, 0),
        ([torch.zeros(4, 7, dtype=torch.long)], 0),
        (None, 0),
    ],
)
def test_tokens_are_counted_if_known(batch, tokens):
    assert tokens_in(batch) == tokens


SLOW_SECOND_RANK = """
import os, time
for epoch in range(2):
    for batch in loader:
        opt.zero_grad()
        loss = model(batch["input_ids"].float()).square().mean()
        time.sleep(0.05 if os.environ["RANK"] == "1" else 0.01)
        loss.backward()
        opt.step()
"""


def test_a_run_whose_second_rank_is_slow(monkeypatch, tmp_path):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    model = torch.nn.Linear(6, 1)
    data = [{"input_ids": torch.zeros(6, dtype=torch.long)} for _ in range(200)]
    namespace = {
        "__name__": "__main__",
        "model": model,
        "opt": torch.optim.SGD(model.parameters(), 0.1),
        "loader": torch.utils.data.DataLoader(data, batch_size=4),
    }
    run = nbmgpu.run(SLOW_SECOND_RANK, namespace, gpus=2)
    for seen in run.view.ranks:
        assert seen.heartbeat.step == seen.step == 100
        assert seen.heartbeat.logged == 0
        assert seen.step_times[-1][1] > 0.05
    found = straggler(run)
    assert found.awaited
    assert found.rank == 1
    assert found.own > 0.05
    assert found.own > 1.5 * found.others
    samples, tokens = (run.view.curves[name].last for name in ("samples/s", "tokens/s"))
    assert tokens == pytest.approx(6 * samples)


def test_a_cell_may_replace_stdout_by_any_object(monkeypatch, tmp_path):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    namespace = {"__name__": "__main__"}
    source = """
import sys, threading, time
class Tee:
    def write(self, text):
        return len(text)
plain, sys.stdout = sys.stdout, Tee()
time.sleep(0.4)
sys.stdout = plain
beats = any(thread.name == "nbmgpu-heartbeat" for thread in threading.enumerate())
del plain, Tee
"""
    nbmgpu.run(source, namespace, gpus=2, cpu=True)
    assert namespace["beats"]
