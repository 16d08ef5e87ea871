"""Device probing, placement of ranks, and ``%mgpu info``."""

import dataclasses
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import nbmgpu.devices.probe
from nbmgpu.advisor.advisor import catalogue
from nbmgpu.advisor.available_memory import probe_memory
from nbmgpu.advisor.request import AdviceRequest
from nbmgpu.devices.nvidia import MIB, Gpu, visible_gpus
from nbmgpu.devices.placement import Placement, place_ranks
from nbmgpu.devices.probe import Machine, probe, torch_build
from nbmgpu.errors import OptionError
from nbmgpu.frontend.info import info_text, version_lines
from nbmgpu.options.run_options import RunOptions
from nbmgpu.system.limits import (
    available_memory,
    cpu_quota,
    limited_cpu_time,
    memory_limit,
    usable_cores,
)

PACKAGES = Path(nbmgpu.devices.probe.__file__).parents[1]
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{PACKAGES}:{os.environ.get('PYTHONPATH', '')}"}

A100 = "NVIDIA A100-SXM4-80GB"
FOUR = tuple(Gpu(i, A100, 80 << 30, 79 << 30, f"GPU-{i}{i}aa-{i}") for i in range(4))
LAPTOP = Machine(cores=2, memory=16 << 30, why_not="No GPU here")
SERVER = Machine(cores=32, memory=512 << 30, gpus=FOUR, cuda=True)

NVIDIA_SMI = f"""#!/bin/sh
test "$1" = --query-gpu=index,name,memory.total,memory.free,uuid,mig.mode.current || exit 9
echo "0, {A100}, 81920, 80896, GPU-00aa-0, Disabled"
echo "1, {A100}, [N/A], [N/A], GPU-11aa-1, [N/A]"
"""
NVML = """
class Memory: total, free = 80 << 30, 70 << 30
nvmlInit = nvmlShutdown = lambda: None
nvmlDeviceGetCount = lambda: 3
nvmlDeviceGetHandleByIndex = lambda index: index
nvmlDeviceGetMemoryInfo = lambda handle: Memory
nvmlDeviceGetName = lambda handle: "NVIDIA H100"
nvmlDeviceGetUUID = lambda handle: f"GPU-{handle}"
def nvmlDeviceGetMigMode(handle): raise RuntimeError("Not Supported")
"""
DIVIDED = f"""{NVML}
nvmlDeviceGetCount = lambda: 2
nvmlDeviceGetName = lambda handle: "NVIDIA H100 80GB HBM3"
def nvmlDeviceGetMigMode(handle): return MODES[handle]
"""


@pytest.fixture
def probed(tmp_path):
    """Probe in a new process with fake torch, nvidia-smi and NVML."""

    def run(smi="", nvml="", cuda="12.8", hip=None, xpu=None, **environment):
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch/__init__.py").write_text("raise AssertionError('torch was imported')")
        (tmp_path / "torch/version.py").write_text(
            f"__version__ = '2.9'\ncuda, hip, xpu = {cuda!r}, {hip!r}, {xpu!r}"
        )
        if smi:
            (tmp_path / "nvidia-smi").write_text(smi)
            (tmp_path / "nvidia-smi").chmod(0o755)
        if nvml:
            (tmp_path / "pynvml.py").write_text(nvml)
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                "import nbmgpu.devices.probe; print(nbmgpu.devices.probe.probe())",
            ],
            env={"PATH": str(tmp_path), "PYTHONPATH": f"{tmp_path}:{PACKAGES}", **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        return eval(done.stdout, {"Machine": Machine, "Gpu": Gpu})

    return run


def refusal(line, machine):
    """Return the message with which a cell is refused on a machine."""
    with pytest.raises(OptionError) as caught:
        place_ranks(RunOptions.parse(line), machine)
    return str(caught.value)


def test_nvidia_smi_lists_gpus(probed):
    machine = probed(NVIDIA_SMI)
    assert machine.gpus == (
        Gpu(0, A100, 81920 * MIB, 80896 * MIB, "GPU-00aa-0"),
        Gpu(1, A100, 0, 0, "GPU-11aa-1"),
    )
    assert machine.cuda
    assert (machine.why_not, machine.hidden) == ("", "")
    assert machine.cores == usable_cores()
    assert machine.memory > 0


def test_nvml_takes_precedence_over_nvidia_smi(probed):
    machine = probed(NVIDIA_SMI, NVML)
    assert [gpu.name for gpu in machine.gpus] == ["NVIDIA H100"] * 3
    assert machine.gpus[2] == Gpu(2, "NVIDIA H100", 80 << 30, 70 << 30, "GPU-2")


def test_nvidia_smi_is_used_if_nvml_fails(probed):
    broken = "def nvmlInit(): raise RuntimeError('Driver Not Loaded')"
    assert len(probed(NVIDIA_SMI, broken).gpus) == 2


def test_a_machine_without_driver_has_no_gpu(probed):
    machine = probed()
    assert (machine.gpus, machine.cuda, machine.why_not) == ((), False, "No GPU here")


def test_the_error_of_the_driver_is_quoted(probed):
    script = (
        "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n"
    )
    why = "nvidia-smi fails (Failed to initialize NVML: Driver/library version mismatch)"
    assert probed(script).why_not == why


LOST = "def nvmlDeviceGetMemoryInfo(handle):\n    if handle == 1: raise OSError('GPU is lost')"
LOST += "\n    return Memory"
LOST_ROWS = (
    "#!/bin/sh\necho '0, NVIDIA, with a comma, 81920, 80896, GPU-0, Disabled'\n"
    "echo '1, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]'\n"
    "echo '[GPU is lost], NVIDIA H100, 81920, 80896, GPU-2, Disabled'\n"
)


def test_a_lost_gpu_is_named_and_the_others_are_used(probed):
    machine = probed(nvml=NVML + LOST)
    assert [gpu.index for gpu in machine.gpus] == [0, 2]
    assert machine.lost == ("GPU 1 fails (GPU is lost)",)
    placement = place_ranks(RunOptions.parse("-g 2"), machine)
    assert placement.devices == ("cuda:0", "cuda:2")
    notice = "GPU 1 fails (GPU is lost): not used. What the driver says: !nvidia-smi."
    assert placement.notice == notice
    assert "there are 2, and GPU 1 fails (GPU is lost)." in refusal("-g 3", machine)
    assert "There is no GPU 1: there are 2, counted from 0, and GPU 1 fails" in refusal(
        "-g 0,1", machine
    )
    assert "unusable  GPU 1 fails (GPU is lost)" in info_text(machine)


def test_a_gpu_that_is_lost_to_nvidia_smi_is_named(probed):
    machine = probed(LOST_ROWS)
    assert [(gpu.index, gpu.name) for gpu in machine.gpus] == [(0, "NVIDIA, with a comma")]
    assert machine.lost == ("GPU 1 fails (GPU is lost)", "GPU 2 fails (GPU is lost)")


def test_a_machine_whose_gpus_are_all_lost_says_so(probed):
    machine = probed(nvml=NVML + LOST, CUDA_VISIBLE_DEVICES="1")
    assert (machine.gpus, machine.why_not) == ((), "GPU 0 fails (GPU is lost)")


def test_the_error_of_nvml_is_quoted_where_there_is_no_nvidia_smi(probed):
    machine = probed(nvml="def nvmlInit(): raise OSError('Driver/library version mismatch')")
    why = "NVIDIA's driver gives no answer (Driver/library version mismatch)"
    assert machine.why_not == why


def test_no_driver_is_no_error(probed):
    machine = probed(nvml="def nvmlInit(): raise OSError('NVML Shared Library Not Found')")
    assert machine.why_not == "No GPU here"


def test_memory_that_nvml_cannot_tell_is_unknown(probed):
    shared = "def nvmlDeviceGetMemoryInfo(handle): raise OSError('Not Supported')"
    machine = probed(nvml=NVML + shared)
    assert [(gpu.memory_total, gpu.fault) for gpu in machine.gpus] == [(0, "")] * 3


def test_names_in_bytes_of_old_pynvml_are_text(probed):
    old = "nvmlDeviceGetName, nvmlDeviceGetUUID = lambda h: b'T4', lambda h: b'GPU-%d' % h"
    machine = probed(nvml=NVML + old, CUDA_VISIBLE_DEVICES="GPU-1")
    assert [(gpu.name, gpu.uuid) for gpu in machine.gpus] == [("T4", "GPU-1")]


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        ("5", "names no GPU of this machine, which has GPU 0, 1, 2"),
        ("GPU-zzzz", "names no GPU of this machine, which has GPU 0, 1, 2"),
        ("GPU-", "names several GPUs of this machine, which has GPU 0, 1, 2"),
        ("7,0", "names no GPU of this machine with 7, which has GPU 0, 1, 2"),
        ("0,0", "names GPU 0 of this machine twice, which has GPU 0, 1, 2"),
    ],
)
def test_a_mistake_in_the_variable_is_named(probed, shown, words):
    machine = probed(nvml=NVML, CUDA_VISIBLE_DEVICES=shown)
    assert machine.why_not == f"CUDA_VISIBLE_DEVICES={shown} {words}"
    notice = place_ranks(RunOptions(), machine).notice
    assert notice.endswith(" To use all: %env CUDA_VISIBLE_DEVICES=0,1,2.")


def test_a_variable_is_no_mistake_where_there_is_no_gpu(probed):
    machine = probed(CUDA_VISIBLE_DEVICES="0")
    assert (machine.why_not, machine.hidden, machine.remedy) == ("No GPU here", "", "")


def test_a_gpu_without_a_uuid_is_used(probed):
    machine = probed("#!/bin/sh\necho '0, Orin (nvgpu), [N/A], [N/A], [N/A], [N/A]'\n")
    assert machine.gpus == (Gpu(0, "Orin (nvgpu)"),)


def test_a_cpu_build_of_torch_uses_no_gpu(probed):
    machine = probed(NVIDIA_SMI, cuda=None)
    assert len(machine.gpus) == 2
    assert not machine.cuda
    notice = "torch is a CPU build and leaves 2 GPUs unused: 2 CPU ranks with gloo"
    assert place_ranks(RunOptions(), machine).notice.startswith(notice)


def test_gpus_can_be_hidden(probed):
    machine = probed(NVIDIA_SMI, CUDA_VISIBLE_DEVICES="")
    assert (machine.gpus, machine.cuda, machine.remedy) == ((), False, "")
    assert machine.why_not == machine.hidden == "CUDA_VISIBLE_DEVICES= hides 2 GPUs"


def test_gpus_are_numbered_as_in_torch(probed):
    machine = probed(NVIDIA_SMI, CUDA_VISIBLE_DEVICES="1")
    assert machine.gpus == (Gpu(0, A100, 0, 0, "GPU-11aa-1"),)
    assert machine.hidden == "CUDA_VISIBLE_DEVICES=1 hides 1 GPU"


@pytest.mark.parametrize(
    ("shown", "physical"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2", [2]),
        ("3, 1", [3, 1]),
        ("0,9,1", [0]),
        ("0,-1,1", [0]),
        ("1,1", []),
        ("GPU-33aa-3,GPU-0", [3, 0]),
        ("GPU-", []),
        ("GPU-11aa-1,1", []),
    ],
)
def test_cuda_visible_devices_is_parsed_as_by_cuda(shown, physical):
    gpus = visible_gpus(FOUR, shown).gpus
    assert [gpu.uuid for gpu in gpus] == [FOUR[i].uuid for i in physical]
    assert [gpu.index for gpu in gpus] == list(range(len(physical)))


def test_only_one_mig_slice_is_visible():
    assert [gpu.uuid for gpu in visible_gpus(FOUR, "MIG-a,MIG-b").gpus] == ["MIG-a"]


def test_of_gpus_divided_into_slices_cuda_exposes_one(probed):
    machine = probed(nvml=DIVIDED + "MODES = [(1, 1), (1, 1)]")
    assert machine.gpus == (Gpu(0, "MIG slice of NVIDIA H100 80GB HBM3", uuid="GPU-0", mig=True),)
    assert machine.cuda
    assert machine.hidden == "CUDA shows only one slice of GPUs that are divided (MIG)"
    assert "CUDA_VISIBLE_DEVICES" not in refusal("-g 2", machine)


def test_a_gpu_that_is_not_divided_is_whole(probed):
    machine = probed(nvml=DIVIDED + "MODES = [(0, 1), (0, 0)]", CUDA_VISIBLE_DEVICES="GPU-1,GPU-0")
    assert [gpu.uuid for gpu in machine.gpus] == ["GPU-1", "GPU-0"]
    assert machine.gpus[0].memory_total == 80 << 30


def test_nvidia_smi_tells_which_gpus_are_divided(probed):
    (gpu,) = probed(NVIDIA_SMI.replace("Disabled", "Enabled")).gpus
    assert gpu == Gpu(0, f"MIG slice of {A100}", uuid="GPU-00aa-0", mig=True)


@pytest.mark.parametrize(
    ("build", "label"), [({"hip": "6.4.43482"}, "ROCm 6.4.43482"), ({"xpu": "20250302"}, "XPU")]
)
def test_gpus_of_others_are_declined_in_a_sentence(probed, build, label):
    machine = probed(cuda=None, **build)
    assert machine.why_not.startswith("nbmgpu uses NVIDIA's GPUs only, and torch is a " + label)
    assert place_ranks(RunOptions(), machine).devices == ("cpu", "cpu")


def test_a_container_without_permission_says_so(probed):
    script = "#!/bin/sh\necho 'Failed to initialize NVML: Insufficient Permissions'\nexit 4\n"
    broken = "def nvmlInit(): raise RuntimeError('Insufficient Permissions')"
    why = "nvidia-smi fails (Failed to initialize NVML: Insufficient Permissions)"
    assert probed(script, broken).why_not == why


def test_the_build_of_torch_is_read_without_importing_it():
    code = "import sys, nbmgpu.devices.probe as d; print(d.torch_build(), 'torch' in sys.modules)"
    output = subprocess.check_output([sys.executable, "-c", code], env=ENVIRONMENT, text=True)
    assert output.split() == [*str(torch_build()).split(), "False"]
    torch = pytest.importorskip("torch")
    assert torch_build().version == torch.__version__
    assert torch_build().cuda == torch.version.cuda


@pytest.mark.parametrize(
    ("line", "ranks", "threads", "notice"),
    [
        ("", 2, 1, "No GPU here: 2 CPU ranks with gloo, 1 thread each."),
        ("--cpu", 2, 1, "As requested: 2 CPU ranks with gloo, 1 thread each."),
        ("-g 1", 1, 2, "No GPU here: 1 CPU rank with gloo, 2 threads each."),
        ("-g all", 2, 1, "No GPU here: 2 CPU ranks with gloo, 1 thread each."),
        ("-g 0,5,7", 3, 1, "No GPU here: 3 CPU ranks with gloo, 1 thread each, sharing 2 cores."),
        ("-g 8", 8, 1, "No GPU here: 8 CPU ranks with gloo, 1 thread each, sharing 2 cores."),
    ],
)
def test_without_a_gpu_ranks_run_on_the_cpu(line, ranks, threads, notice):
    assert place_ranks(RunOptions.parse(line), LAPTOP) == Placement(
        ("cpu",) * ranks, threads, notice
    )


def test_too_many_cpu_ranks_raise_an_error():
    with pytest.raises(OptionError) as caught:
        place_ranks(RunOptions(gpus=9, seed=1), LAPTOP)
    assert str(caught.value) == (
        "9 CPU ranks are too many for 2 cores.\nAt most 4 per core run.\n"
        "Try: %%mgpu --strategy ddp --gpus 8 --seed 1"
    )


@pytest.mark.parametrize(
    ("line", "indices", "threads"),
    [
        ("", [0, 1, 2, 3], 8),
        ("-g all", [0, 1, 2, 3], 8),
        ("-g 2", [0, 1], 16),
        ("-g 0,2", [0, 2], 16),
        ("-g 3,1,0", [3, 1, 0], 10),
        ("-g 2,", [2], 32),
    ],
)
def test_ranks_are_placed_on_the_requested_gpus(line, indices, threads):
    placement = place_ranks(RunOptions.parse(line), SERVER)
    assert placement == Placement(tuple(f"cuda:{i}" for i in indices), threads, "")
    assert placement.world_size == len(indices)


def test_ranks_share_a_gpu_that_is_listed_twice():
    placement = place_ranks(RunOptions.of(gpus=(0, 0, 2)), SERVER)
    assert placement.devices == ("cuda:0", "cuda:0", "cuda:2")
    assert "Several ranks share cuda:0. They communicate by gloo" in placement.notice


def test_ranks_on_one_gpu_share_its_memory():
    memory = probe_memory(RunOptions.of(gpus=(0, 0, 2)), SERVER)
    assert memory.free == (79 << 30) // 2
    assert memory.description == f"3 ranks on 2 GPUs ({A100})"


def test_one_process_cannot_share_a_gpu_with_itself():
    with pytest.raises(OptionError, match="one process, which cannot list a GPU twice") as caught:
        place_ranks(RunOptions.of(gpus=(1, 1, 2), strategy="mp"), SERVER)
    assert "%%mgpu --strategy mp --gpus 1,2" in str(caught.value)


def test_two_ranks_on_one_gpu_are_offered():
    with pytest.raises(OptionError, match="with --gpus 0,0, two ranks share the GPU"):
        place_ranks(RunOptions.of(gpus=2), dataclasses.replace(SERVER, gpus=FOUR[:1]))


def test_the_cpu_can_be_chosen_over_gpus():
    placement = place_ranks(RunOptions.parse("--cpu"), SERVER)
    assert placement.devices == ("cpu", "cpu")
    assert placement.threads == 16
    assert place_ranks(RunOptions.parse("--cpu -g all"), SERVER).world_size == 4
    assert place_ranks(RunOptions.parse("--cpu -g 1,3,5"), SERVER).world_size == 3


@pytest.mark.parametrize(
    ("line", "text_start", "instead"),
    [
        ("-g 8", "8 GPUs requested, but there are 4", "--gpus 4"),
        ("-g 0,4,2,7", "There is no GPU 4, 7: there are 4, counted from 0", "--gpus 0,2"),
        ("-g 4,", "There is no GPU 4", "--gpus all"),
        ("-g 1000000000", "1000000000 GPUs requested", "--gpus 4"),
    ],
)
def test_too_few_gpus_raise_an_error_with_the_nearest_command(line, text_start, instead):
    with pytest.raises(OptionError) as caught:
        place_ranks(RunOptions.parse(line), SERVER)
    message = str(caught.value)
    assert message.startswith(text_start)
    assert message.endswith(f"\nTry: %%mgpu --strategy ddp {instead}")
    place_ranks(RunOptions.parse(message.partition("%%mgpu")[2]), SERVER)


def test_the_error_mentions_hidden_gpus_and_cpu_ranks():
    hidden = "CUDA_VISIBLE_DEVICES=3 hides 3 GPUs"
    machine = Machine(cores=8, memory=1 << 34, gpus=FOUR[:1], cuda=True, hidden=hidden)
    with pytest.raises(OptionError) as caught:
        place_ranks(RunOptions(gpus=4), machine)
    assert str(caught.value) == (
        "4 GPUs requested, but there is 1, and CUDA_VISIBLE_DEVICES=3 hides 3 GPUs.\n"
        "With --cpu, 4 CPU ranks would run instead.\nTry: %%mgpu --strategy ddp --gpus 1"
    )


def test_every_rank_has_at_least_one_thread():
    for cores in (1, 2, 3, 8):
        machine = Machine(cores=cores, memory=1 << 34)
        for gpus in (None, "all", 1, 2, 3, 4):
            placement = place_ranks(RunOptions(gpus=gpus), machine)
            assert placement.threads >= 1
            assert placement.threads * placement.world_size <= max(cores, placement.world_size)
            assert placement.notice.startswith("No GPU here")


def test_cgroup_v2_limits(tmp_path):
    membership = tmp_path / "membership"
    membership.write_text("0::/outer/inner\n")
    inner = tmp_path / "outer/inner"
    inner.mkdir(parents=True)
    assert cpu_quota(tmp_path, membership) == float("inf")
    (inner / "cpu.max").write_text("max 100000\n")
    (inner.parent / "cpu.max").write_text("250000 100000\n")
    (inner / "memory.max").write_text("max\n")
    (tmp_path / "memory.max").write_text("1073741824\n")
    assert cpu_quota(tmp_path, membership) == 2.5
    assert memory_limit(tmp_path, membership) == 1 << 30


def test_available_memory_in_a_cgroup(tmp_path):
    files = {
        "memory.max": "1000000\n",
        "memory.current": "900000\n",
        "memory.stat": "inactive_file 5\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    membership = tmp_path / "cgroup"
    membership.write_text("0::/\n")
    assert available_memory(tmp_path, membership) == 100_005
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(tmp_path, membership) > 10**8
    membership.write_text("4:memory:/docker/abc\n")
    old = tmp_path / "memory"
    old.mkdir()
    (old / "memory.limit_in_bytes").write_text("2000000")
    (old / "memory.usage_in_bytes").write_text("1900000")
    (old / "memory.stat").write_text("total_inactive_file 7\n")
    assert available_memory(tmp_path, membership) == 100_007


def test_cpu_time_under_a_quota(tmp_path):
    membership = tmp_path / "cgroup"
    membership.write_text("0::/inner\n")
    assert limited_cpu_time(tmp_path, membership) is None
    (tmp_path / "inner").mkdir()
    (tmp_path / "cpu.stat").write_text("usage_usec 9000000\nuser_usec 1\n")
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert limited_cpu_time(tmp_path, membership) is None
    (tmp_path / "inner" / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (tmp_path / "inner" / "cpu.max").write_text("150000 100000\n")
    assert limited_cpu_time(tmp_path, membership) == 2.5


def test_cgroup_v1_limits(tmp_path):
    membership = tmp_path / "membership"
    membership.write_text("4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/x\n")
    for name, text in {
        "cpu/cpu.cfs_quota_us": "-1",
        "cpu/cpu.cfs_period_us": "100000",
        "cpu/docker/abc/cpu.cfs_quota_us": "150000",
        "cpu/docker/abc/cpu.cfs_period_us": "100000",
        "memory/memory.limit_in_bytes": "2147483648",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert cpu_quota(tmp_path, membership) == 1.5
    assert memory_limit(tmp_path, membership) == 2 << 30


def test_no_limits_without_cgroups(tmp_path):
    assert cpu_quota(tmp_path, tmp_path / "none") == float("inf")
    assert memory_limit(tmp_path, tmp_path / "none") == sys.maxsize


def test_info_lists_devices_and_versions():
    text = info_text(SERVER)
    assert f"cuda:3   {A100}, 79.0 GiB free of 80.0 GiB" in text
    assert "one rank on each of cuda:0, cuda:1, cuda:2, cuda:3" in text
    assert f"python {platform.python_version()}" in " ".join(text.split())
    assert "No GPU here: 2 CPU ranks" in info_text(LAPTOP)
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_info_imports_no_heavy_packages():
    code = (
        "import sys; from nbmgpu.frontend.info import info_text; print(info_text());"
        "print([m for m in ('torch', 'pandas', 'transformers', 'IPython') if m in sys.modules])"
    )
    output = subprocess.check_output([sys.executable, "-c", code], env=ENVIRONMENT, text=True)
    assert output.splitlines()[-1] == "[]"
    assert f"cpu {probe().cores} core(s)" in " ".join(output.split())
    assert f"torch {torch_build().version} ({torch_build().label} build)" in " ".join(
        output.split()
    )


def test_info_lists_missing_packages_with_the_pip_command(monkeypatch):
    monkeypatch.setattr("nbmgpu.frontend.info.OPTIONAL", {"no-such-package-here": "nothing"})
    assert "pip install no-such-package-here" in info_text(LAPTOP)
    assert not any("no-such-package-here" in line for line in version_lines())


def test_ranks_are_placed_on_the_devices_of_another_accelerator() -> None:
    machine = Machine(cores=8, memory=1 << 34, gpus=FOUR[:2], cuda=True, kind="xpu")
    assert place_ranks(RunOptions(), machine).devices == ("xpu:0", "xpu:1")
    for strategy in "dp", "deepspeed_stage_2":
        message = refusal(f"--strategy {strategy}", machine)
        assert f"--strategy {strategy} runs on CUDA's GPUs and on the CPU, and these" in message
    message = refusal("-g 1,1", machine)
    assert message.startswith("Ranks cannot share a device of xpu: gloo")
    assert message.endswith("Try: %%mgpu --strategy ddp --gpus 1,")
    one = dataclasses.replace(machine, gpus=FOUR[:1])
    assert "--gpus 0,0" not in refusal("-g 2", one)


def test_info_says_that_unlike_gpus_may_have_two_orders(monkeypatch) -> None:
    unlike = dataclasses.replace(SERVER, gpus=(FOUR[0], Gpu(1, "NVIDIA T4")))
    hint = "CUDA may put the fastest first: %env CUDA_DEVICE_ORDER=PCI_BUS_ID"
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert hint in info_text(unlike)
    assert hint not in info_text(SERVER)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert hint not in info_text(unlike)


def test_info_and_advice_are_about_the_devices_that_there_are() -> None:
    gpus = (Gpu(0, "standin"), Gpu(1, "standin"))
    machine = Machine(cores=8, memory=1 << 34, gpus=gpus, cuda=True, kind="standin")
    text = info_text(machine)
    assert "standin:1  standin, memory unknown\n" in text
    assert "pip install --force-reinstall torch" not in text
    rows = {row.name: row for row in catalogue(AdviceRequest(), machine).rows}
    assert rows["ddp"].line
    for name in "dp", "mp", "deepspeed_stage_3":
        assert (rows[name].line, rows[name].fits) == ("", "no")
        assert "these devices are standin" in rows[name].problem
