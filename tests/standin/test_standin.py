"""Training on an accelerator without hardware, see ``device.cpp``: what a GPU would do differently.

``NBMGPU_TEST_DEVICE=standin PYTHONPATH=build/standin pytest tests/numerics`` runs more of it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FOLDER = TESTS.parent / "build" / "standin"

COUNTED = ("ddp", "zero1", "zero2", "fsdp", "tp", "pp")

MATRIX = pytest.mark.matrix("nbmgpu/strategies", "nbmgpu/rank", "nbmgpu/environment")

PARTS = 4
"""Parts of a file's tests, which overlap."""

OUT_WARNING = "ignore:An output with one or more elements was resized"
"""Of torch's fallback to the CPU, for operators into ``out``."""

STEPS = 4 * 6
"""Training steps of ``count_steps.py`` on each rank; points of the first ones are copied later."""

POINT = 8
"""Bytes of a point of the loss curve, copied to the host without waiting."""


def part(number: int) -> list[str]:
    """Select tests for some minutes, others for each ``number``; see ``tests/conftest.py``."""
    return ["-m", "", "--matrix-minutes=4", "--matrix-workers=1", f"--matrix-number={number}"]


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Return environment variables with which torch has the stand-in device."""
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler: sudo apt-get install g++")
    command = [sys.executable, str(TESTS / "standin" / "build.py"), str(FOLDER)]
    without = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # the last build
    subprocess.run(command, check=True, capture_output=True, timeout=600, env=without)
    paths = os.pathsep.join([str(FOLDER), str(TESTS), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"NBMGPU_TEST_DEVICE": "standin", "PYTHONPATH": paths}


def run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_training_step_waits_for_the_device_no_more_than_with_ddp_by_hand(environment) -> None:
    script = str(TESTS / "standin" / "count_steps.py")
    result = run(environment, script, "by hand", *COUNTED)
    assert result.returncode == 0, result.stderr[-3000:]
    counts = json.loads(result.stdout.splitlines()[-1])
    by_hand = counts.pop("by hand")
    for strategy, counted in counts.items():
        where = f"{strategy}: {counted['lines']}"
        assert counted["synchronizations"] <= by_hand["synchronizations"], where
        assert counted["to_device"] <= by_hand["to_device"], where
        assert counted["to_host_bytes"] <= STEPS * POINT, where


@pytest.mark.parametrize(
    ("file", "selection"),
    [
        ("numerics/test_idioms.py", ["-k", "plain: or OneCycleLR"]),
        *(pytest.param("numerics/test_idioms.py", part(n), marks=MATRIX) for n in range(PARTS)),
        pytest.param("strategies/test_every_idiom.py", [*part(0), "-k", "fsdp"], marks=MATRIX),
        pytest.param("strategies/test_exact.py", [*part(0), "-k", "not deepspeed"], marks=MATRIX),
    ],
)
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_idioms_have_the_numbers_of_one_device(
    environment, file: str, selection: list[str]
) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-W", OUT_WARNING, *selection]
    result = run(environment, "-m", "pytest", *options, str(TESTS / file))
    assert result.returncode == 0, result.stdout[-5000:]
    assert " passed" in result.stdout


@pytest.mark.slow
def test_the_notebooks_memory_is_free_while_ranks_run(environment) -> None:
    script = str(TESTS / "standin" / "freed_memory.py")
    result = run(environment | {"STANDIN_MEMORY": str(1 << 26)}, script)
    assert result.returncode == 0, result.stderr[-3000:]
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["plan"] == ["freed        2.2 MiB of the notebook's GPU memory, until the end"]
    assert found["freed"] == found["used"], "all that the cell reads in full"
    assert found["trained"], "results are in the notebook's tensors and views of them"
    assert found["kept"], "after an exception, the notebook has what it had"
    assert found["error"] == "1000.0"
    assert found["restarted"]
    assert "are not on their GPU again: it is full" in found["full"]
    assert found["later"], "the next cell brings them back"
    held = "holds 6.0 MiB on its accelerator that the cell does not read"
    assert held in found["unread"]
    assert "`part` (4.0 MiB), `unread` (2.0 MiB). To free it" in found["unread"]


COMPARED = """
import nbmgpu, torch
from torch import nn
X, Y = torch.randn(64, 8, device="standin"), torch.randint(0, 4, (64,), device="standin")
model = nn.Linear(8, 4).to("standin")
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=16)
cell = "for x, y in loader:\\n    opt.zero_grad()\\n"
cell += "    nn.functional.cross_entropy(model(x), y).backward()\\n    opt.step()"
run = nbmgpu.run(cell, {"nn": nn, "model": model, "opt": opt, "loader": loader}, gpus=2, OPTIONS)
"""


def test_ranks_are_compared_with_one_device(environment) -> None:
    result = run(environment, "-c", COMPARED.replace(", OPTIONS", ""))
    assert "all 4 optimizer steps compared" in result.stdout, result.stdout + result.stderr


def test_the_check_runs_on_other_accelerators_than_cuda(environment, tmp_path) -> None:
    report = tmp_path / "report.json"
    chosen = ("machine: ", "out of memory", "index out of range", "ddp, an MLP", "ddp, an LSTM")
    only = [part for text in chosen for part in ("--only", text)]
    limited = environment | {"STANDIN_MEMORY": str(1 << 26)}
    result = run(limited, "-m", "nbmgpu.check", "--json", str(report), *only)
    assert result.returncode == 0, result.stdout + result.stderr
    found = {r["name"]: r for r in json.loads(report.read_text())["results"]}
    skipped = {name: r["text"] for name, r in found.items() if r["status"] != "passed"}
    assert set(skipped) == {"links between GPUs", "ddp, an LSTM"}, skipped
    assert "one standin device alone raises NotImplementedError" in skipped["ddp, an LSTM"]
    assert found["a sum over all ranks"]["text"] == "4 ranks, cpu:gloo,standin:standin_gloo"
    assert "4 standin devices, one per rank" in result.stdout


def test_a_profile_says_what_the_profiler_does_not_record(environment) -> None:
    result = run(environment, "-c", COMPARED.replace("OPTIONS", "profile='2-3'"))
    assert "torch's profiler records nothing of standin devices" in result.stdout, result.stderr


ON_THE_CPU = """
import nbmgpu, torch
from torch import nn
X, Y = torch.randn(16, 8), torch.randint(0, 4, (16,))
model = nn.Linear(8, 4)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=8)
cell = "for x, y in loader:\\n    opt.zero_grad()\\n"
cell += "    nn.functional.cross_entropy(model(x), y).backward()\\n    opt.step()"
names = {"nn": nn, "model": model, "opt": opt, "loader": loader}
nbmgpu.run(cell, names, gpus=2, exact="always")
"""


def test_a_cell_may_leave_the_device_unused(environment) -> None:
    result = run(environment, "-c", ON_THE_CPU)
    assert "all 2 optimizer steps compared" in result.stdout, result.stdout + result.stderr
    result = run(environment, "-c", ON_THE_CPU.replace('exact="always"', 'profile="1-2"'))
    assert "Traces" in result.stdout, result.stdout + result.stderr
    assert "records nothing of standin devices" not in result.stdout


OUT_OF_RANGE = """
import nbmgpu, torch
from torch import nn
class Binned(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Sigmoid())
        self.bins = nn.Embedding(11, 4)
    def forward(self, x):
        p = self.features(x)
        return self.bins((10 * p[:, 0]).long()) + torch.bernoulli(p.detach())[:, :4] * p[:, :4]
X, Y = torch.randn(64, 8, device="standin"), torch.randint(0, 4, (64,), device="standin")
cell = "for x, y in loader:\\n    opt.zero_grad()\\n"
cell += "    nn.functional.cross_entropy(model(x), y).backward()\\n    opt.step()"
for options in ({"exact": "always"}, {"exact": "always", "strategy": "fsdp"}, {"strategy": "pp"}):
    model = Binned().to("standin")
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=16)
    names = {"nn": nn, "model": model, "opt": opt, "loader": loader}
    run = nbmgpu.run(cell, names, gpus=2, **options)
    print("trained:", run.state, sorted(run.view.notices))
"""


def test_a_trial_with_other_numbers_does_not_end_the_use_of_the_device(environment) -> None:
    """An index that is computed from them is out of range, and a probability is not a number."""
    result = run(environment, "-c", OUT_OF_RANGE)
    assert result.stdout.count("trained: finished") == 3, result.stdout + result.stderr
    assert "'whole-batch" not in result.stdout, "batch normalization is split, as on the CPU"


LIKE_A_GPU = """
import os, sys
import nbmgpu, torch
cell = "large = torch.zeros(1 << 20, device='standin')"
try:
    nbmgpu.run(cell, {"torch": torch}, gpus=2)
except torch.OutOfMemoryError as error:
    print("refused:", error)
try:
    torch.ones(2, device="standin") + torch.ones(2)
except RuntimeError as error:
    print("mixed:", error)
torch.manual_seed(0)
states = torch.get_rng_state(), torch.standin.get_rng_state()
torch.rand(2, device="standin")
now = torch.get_rng_state(), torch.standin.get_rng_state()
print("generators:", *map(torch.equal, states, now))
sys.stdout.flush()
if os.fork():
    os.wait()
else:
    try:
        torch.ones(2, device="standin")
    except RuntimeError as error:
        print("forked:", error, flush=True)
    os._exit(0)
values = torch.ones(2, device="standin")
for index in (2, 0):
    try:
        values[torch.tensor([index], device="standin")]
    except RuntimeError as error:
        print(index, "asserted:", error)
"""


def test_the_device_behaves_as_a_gpu(environment) -> None:
    """Memory is limited, devices do not mix, generators are its own, forks cannot use it, and an
    index out of range ends its use."""
    limited = environment | {"STANDIN_MEMORY": str(1 << 20)}
    result = run(limited, "-c", LIKE_A_GPU)
    assert "refused: standin out of memory" in result.stdout, result.stdout + result.stderr
    assert "mixed: Expected all tensors to be on the same device" in result.stdout
    assert "generators: True False" in result.stdout
    assert "forked: Cannot re-initialize the standin device" in result.stdout
    assert "2 asserted: standin error: device-side assert triggered" in result.stdout
    assert "0 asserted: standin error: device-side assert triggered" in result.stdout
