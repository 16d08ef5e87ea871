"""Devices, the catalogue, and pages of logs."""

import base64
import struct
import subprocess
import sys
import textwrap
import time

import pytest

from nbmgpu.options.flags import FLAGS
from nbmgpu.report.log_pages import MAX_LINES
from nbmgpu.server.catalogue import missing_packages
from nbmgpu.server.device_monitor import NO_NVML, CpuMonitor, DeviceMonitor
from nbmgpu.strategies import strategy_names
from nbmgpu.strategies.profiles import BUILT_IN
from nbmgpu.system.limits import usable_cores

NAME = "20260101-120000-000aa"

NVML = """
    class Memory:
        total, used, free = 80 << 30, 20 << 30, 60 << 30
    class Rates:
        gpu = 42
    nvmlInit = nvmlShutdown = lambda: None
    nvmlDeviceGetCount = lambda: 2
    nvmlDeviceGetHandleByIndex = lambda index: f"GPU-{index}"
    nvmlDeviceGetHandleByUUID = lambda uuid: uuid
    nvmlDeviceGetMemoryInfo = lambda handle: Memory
    nvmlDeviceGetName = lambda handle: "NVIDIA H100"
    nvmlDeviceGetUUID = lambda handle: handle
    def nvmlDeviceGetUtilizationRates(handle):
        if handle == "GPU-1":
            raise RuntimeError("Not Supported")
        return Rates
"""


@pytest.fixture
def nvml(tmp_path, monkeypatch):
    """A fake NVML that reports two GPUs."""
    (tmp_path / "pynvml.py").write_text(textwrap.dedent(NVML))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)  # the real one
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield
    sys.modules.pop("pynvml", None)


def test_the_cpu_is_always_listed(runs):
    (cpu,) = [d for d in runs.request("status").json["devices"] if d["kind"] == "cpu"]
    assert cpu["name"] == "cpu"
    assert 0 <= cpu["use"] <= 1
    assert 0 < cpu["memory_used"] < cpu["memory_total"]
    assert "core" in cpu["label"]


def test_cpu_usage_is_measured():
    meter = CpuMonitor()
    meter.read()
    cores = usable_cores()
    count = min(cores, 4)
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(1)
        busy = meter.read()
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    assert 0.5 * count / cores < busy <= 1


def test_gpu_usage_is_read_through_nvml(nvml):
    devices = DeviceMonitor()
    cpu, first, second = devices.read()
    assert cpu.kind == "cpu"
    assert (first.name, first.kind, first.label) == ("cuda:0", "gpu", "NVIDIA H100")
    assert (first.use, first.memory_used, first.memory_total) == (0.42, 20 << 30, 80 << 30)
    assert (second.name, second.use, second.memory_used) == ("cuda:1", -1, 20 << 30)
    devices.close()


def test_gpus_follow_cuda_visible_devices(nvml, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [device.name for device in DeviceMonitor().read()] == ["cpu", "cuda:0"]
    assert DeviceMonitor().read()[1].use == -1  # the driver's second


def test_gpus_without_nvml_are_listed_with_a_hint(tmp_path, monkeypatch):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '0, NVIDIA L4, 23034, 22563, GPU-0, [N/A]'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    devices = DeviceMonitor()
    gpu = devices.read()[1]
    assert (gpu.name, gpu.label, gpu.use, gpu.memory_used) == ("cuda:0", "NVIDIA L4", -1, -1)
    assert gpu.memory_total == 23034 << 20
    assert NO_NVML in devices.problems


def test_the_catalogue_has_every_strategy_and_flag(runs):
    catalogue = runs.request("catalogue").json
    assert [one["name"] for one in catalogue["strategies"]] == list(strategy_names())
    assert [one["name"] for one in catalogue["flags"]] == [flag.name for flag in FLAGS]
    fsdp = next(one for one in catalogue["strategies"] if one["name"] == "fsdp")
    assert "--cpu-offload" in fsdp["options"]
    assert "--compress" not in fsdp["options"]
    assert fsdp["saves"] == BUILT_IN["fsdp"].saves


def test_missing_packages_of_a_strategy_are_reported(monkeypatch):
    from nbmgpu.devices.probe import TorchBuild

    old = TorchBuild("2.6.0", None, None)
    monkeypatch.setattr("nbmgpu.devices.requirements.torch_build", lambda: old)
    needs = "It needs torch 2.11 or newer, and this is 2.6.0. Try: pip install 'torch>=2.11'"
    assert missing_packages(BUILT_IN["fsdp"], has_torch=True) == needs
    assert missing_packages(BUILT_IN["ddp"], has_torch=True) == ""
    absent = "torch is not installed where this server runs."
    assert missing_packages(BUILT_IN["ddp"], has_torch=False) == absent


def test_logs_are_paged(runs, stage):
    staged = stage(2, id=NAME)
    staged.log(0, "".join(f"zero {n}\n" for n in range(300)))
    staged.log(1, "one\n")
    page = runs.request(f"runs/{NAME}/logs?rank=0&first=10&count=5").json
    assert [line["text"] for line in page["lines"]] == [f"zero {n}" for n in range(10, 15)]
    assert page["total"] == 300
    assert runs.request(f"runs/{NAME}/logs?rank=0&count=1").json["lines"][0]["text"] == "zero 299"
    assert runs.request(f"runs/{NAME}/logs").json["total"] == 301
    assert runs.request(f"runs/{NAME}/logs?search=ONE").json["total"] == 1
    assert runs.request(f"runs/{NAME}/logs?search=%20").json["total"] == 300
    assert runs.request(f"runs/{NAME}/logs?rank=7").json["lines"] == []
    staged.log(1, "more\n")  # an open reader reads new lines
    assert runs.request(f"runs/{NAME}/logs?rank=1").json["total"] == 2
    assert len(runs.request(f"runs/{NAME}/logs?count=99999").json["lines"]) <= MAX_LINES
    assert runs.request(f"runs/{NAME}/logs?first=x").status == 400


def test_a_range_of_a_curve_has_all_its_points(runs, stage):
    staged = stage(1, id=NAME)
    staged.points("loss", list(range(5000)), [float(step) for step in range(5000)])
    (whole,) = runs.request(f"runs/{NAME}").json["curves"]["shown"]
    assert points_of(whole)[1][0] > 1  # downsampled
    near = runs.request(f"runs/{NAME}/curve?name=loss&first=100&last=110").json
    assert points_of(near) == [(float(step), float(step)) for step in range(99, 112)]
    assert runs.request(f"runs/{NAME}/curve?name=none").json is None
    refused = runs.request(f"runs/{NAME}/curve?first=x")
    assert (refused.status, refused.json["message"]) == (400, "first='x' is not a number.")


def test_the_metrics_are_downloaded_as_csv_with_all_points(runs, stage):
    staged = stage(2, id=NAME)
    for rank in range(2):
        staged.points("loss", list(range(25_000)), [rank + step for step in range(25_000)], rank)
    staged.points("acc", [24_999], [0.25])
    answer = runs.request(f"runs/{NAME}/metrics.csv")
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{NAME}-metrics.csv"'
    lines = answer.body.decode().splitlines()
    assert lines[:2] == ["step,loss,acc", "0,0.5,"]
    assert lines[-1] == "24999,24999.5,0.25"
    assert len(lines) == 25_001
    missing = runs.request("runs/20260101-000000-none/metrics.csv")
    assert (missing.status, missing.json["hint"] != "") == (404, True)


def points_of(curve):
    return list(struct.iter_unpack("<2f", base64.b64decode(curve["points"])))


def test_a_missing_log_gets_404(runs, stage):
    stage(1, id=NAME)
    assert "has written nothing yet" in runs.request(f"runs/{NAME}/logs/0/download").json["message"]
    assert "has no rank 3" in runs.request(f"runs/{NAME}/logs/3/download").json["message"]


def test_a_download_is_complete_and_plain_text(runs, stage):
    data = bytes(range(256)) * 8192
    stage(1, id=NAME).log(0, data)
    answer = runs.request(f"runs/{NAME}/logs/0/download")
    assert answer.body == data
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
