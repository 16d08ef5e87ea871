"""Full memory, /dev/shm or disk: a clear error or a fallback, and complete cleanup.

Kernels run in separate mount namespaces, so that filling a mount affects nothing else.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from conftest import TRAINING
from kernels import ExecutedCell, Notebook, notebook_in
from matrix_selection import sampled

MOUNTS = ("unshare", "--mount", "--propagation", "private", "sh", "-c")
SHM = 'mount -t tmpfs -o size=16m tmpfs /dev/shm && exec "$0" "$@"'
RUNS = 'mkdir -p "$NBMGPU_RUNS" && mount -t tmpfs -o size=4m tmpfs "$NBMGPU_RUNS" && exec "$0" "$@"'
MEMORY = 'ulimit -v 8388608 && exec "$0" "$@"'

FILL = """
def fill(path, leave):
    free = os.statvfs(path)
    with open(f"{path}/filler", "wb") as file:
        file.write(bytes(free.f_bavail * free.f_frsize - leave))
"""

RUN_FOLDERS = "sorted(os.listdir(os.environ['NBMGPU_RUNS']))"

permitted = subprocess.run([*MOUNTS, SHM, "true"], check=False, capture_output=True).returncode == 0
needs_mounts = pytest.mark.skipif(not permitted, reason="mounting is not permitted")

StartLimited = Callable[[str], Notebook]

EXERCISED = ("nbmgpu/kernel", "nbmgpu/rank", "nbmgpu/engines")


@pytest.fixture(scope="module")
def limited_kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartLimited]:
    """Start one kernel per limiting command."""
    made: dict[str, Notebook] = {}
    with ExitStack() as stack:

        def make(command: str) -> Notebook:
            if command not in made:
                wrapper = (*MOUNTS, command) if "mount" in command else ("sh", "-c", command)
                folder = tmp_path_factory.mktemp("limited")
                made[command] = stack.enter_context(notebook_in(folder, wrapper)).load()
            return made[command]

        yield make


@pytest.fixture
def limited(limited_kernels: StartLimited) -> StartLimited:
    """Return the kernel started by a shell command that limits its resources."""

    def ready(command: str) -> Notebook:
        notebook = limited_kernels(command)
        notebook.run(f"{TRAINING}{FILL}")
        notebook.wait_for_ranks_to_exit(10)
        if command == SHM:
            notebook.run("for name in os.listdir('/dev/shm'): os.remove('/dev/shm/' + name)")
        return notebook

    return ready


def summary_html(cell: ExecutedCell) -> str:
    return str(cell.of("update_display_data")[-1].content["data"]["text/html"])


@needs_mounts
def test_data_is_sent_if_dev_shm_is_full(limited: StartLimited) -> None:
    notebook = limited(SHM)
    notebook.run("fill('/dev/shm', 0)\ndata = torch.ones(2**24)")
    notebook.run("%%mgpu --gpus 2\nfor x, y in loader: pass\ndata += 1\nfloat(data.sum())")
    assert notebook.value("float(data.sum()), os.listdir('/dev/shm')") == (2.0**25, ["filler"])


WITHOUT_SHARED_MEMORY = {
    "locks of workers": (
        0, "for _ in DataLoader(loader.dataset, num_workers=2): pass",
        "OSError", "num_workers=0"),
    "batches of workers": (
        2**19, "import time; time.sleep(3 * dist.get_rank())  # or locks do not fit\n"
        "for _ in DataLoader(torch.ones(8, 2**16), batch_size=4, num_workers=2): pass",
        "RuntimeError", "fewer workers"),
    "a shared tensor": (
        2**16, "torch.ones(2**20).share_memory_()", "RuntimeError", "more room in /dev/shm"),
    "SharedMemory": (
        2**16, "from multiprocessing.shared_memory import SharedMemory\n"
        "memory = SharedMemory(create=True, size=2**20)\nmemory.buf[:] = bytes(2**20)",
        "RankKilledError", "fewer DataLoader workers"),
}  # fmt: skip


@needs_mounts
@pytest.mark.parametrize(
    ("left", "source", "error", "remedy"),
    sampled(WITHOUT_SHARED_MEMORY.values(), 2, *EXERCISED, ids=WITHOUT_SHARED_MEMORY),
)
def test_a_cell_that_needs_a_full_dev_shm_raises_an_error(
    limited: StartLimited, left: int, source: str, error: str, remedy: str
) -> None:
    notebook = limited(SHM)
    notebook.run(f"fill('/dev/shm', {left})")
    cell = notebook.send(f"%%mgpu --gpus 2 --strategy none\n{source}")
    error_text = cell.fails(error)
    assert "Rank 0 of 2" in error_text or "Rank 1 of 2" in error_text
    assert remedy in summary_html(cell)
    notebook.wait_for_ranks_to_exit(10)
    assert notebook.value("os.listdir('/dev/shm')") == ["filler"]
    notebook.run("os.remove('/dev/shm/filler')")
    notebook.run(f"%%mgpu --gpus 2 --strategy none\n{source}")
    notebook.wait_for_ranks_to_exit(10)
    assert notebook.value("[n for n in os.listdir('/dev/shm') if n.startswith('torch')]") == []


@needs_mounts
def test_shared_memory_of_a_killed_rank_is_removed(limited: StartLimited) -> None:
    notebook = limited(SHM)
    notebook.send(
        "%%mgpu --gpus 2\nfrom multiprocessing.shared_memory import SharedMemory\n"
        "memory = SharedMemory(create=True, size=2**20)\n"
        "dist.barrier()\nos.kill(os.getpid(), signal.SIGKILL)"
    ).fails("RankKilledError")
    notebook.wait_for_ranks_to_exit(10)
    assert notebook.value("os.listdir('/dev/shm')") == []


@needs_mounts
def test_shared_memory_of_ended_workers_is_removed(limited: StartLimited) -> None:
    notebook = limited(SHM)
    notebook.run(f"fill('/dev/shm', {2**19})")
    notebook.run(
        "%%mgpu --gpus 2 --strategy none\n"
        "from contextlib import suppress\n"
        "with suppress(RuntimeError, OSError):  # the other rank may leave no room for locks\n"
        "    for _ in DataLoader(torch.ones(8, 2**16), batch_size=4, num_workers=2): pass\n"
        "import gc; gc.collect()\n"
        "left = [name for name in os.listdir('/dev/shm') if name.startswith('torch')]\n"
        "foreign = f'/dev/shm/torch_{os.getpid()}_1_1'\n"
        "if dist.get_rank() == 0:\n"
        "    os.close(os.open(foreign, os.O_CREAT)); os.chown(foreign, 1, 1)\n"
        "dist.barrier()"
    )
    assert notebook.value("bool(left)"), "the workers left nothing to remove"
    notebook.wait_for_ranks_to_exit(10)
    remaining = notebook.value("sorted(os.listdir('/dev/shm'))")
    assert remaining == ["filler", notebook.value("os.path.basename(foreign)")]


@needs_mounts
def test_a_cell_goes_on_where_its_output_fills_the_disk(limited: StartLimited) -> None:
    notebook = limited(RUNS)
    flood = "for number in range(300_000):\n    print('line', number)\n    nbmgpu.log(n=number)"
    cell = notebook.run(f"%%mgpu --gpus 2 --strategy none\n{flood}\nlast = number")
    assert notebook.value("last") == 299_999
    shown = summary_html(cell)
    assert "No space left on device" in shown
    assert "Metrics and output are missing from here on" in shown
    notebook.wait_for_ranks_to_exit(10)
    notebook.run("fill(os.environ['NBMGPU_RUNS'], 0)")
    before = notebook.value(RUN_FOLDERS)
    error_text = notebook.send("%%mgpu --gpus 2\n6 * 7").fails("LaunchError")
    assert "No space left on device" in error_text
    assert "Try: set NBMGPU_RUNS" in error_text
    assert notebook.value(RUN_FOLDERS) == before, "the incomplete run folder is removed"
    notebook.run("import shutil; shutil.rmtree(nbmgpu.last_run.folder)")
    notebook.run("os.remove(os.environ['NBMGPU_RUNS'] + '/filler')")
    assert notebook.run("%%mgpu --gpus 2\n6 * 7").seen == ["42"]


ON_A_FULL_DISK = {
    "an exception": ("raise KeyError('rank ' + str(dist.get_rank()))", "KeyError"),
    "an exception that does not fit": ("raise KeyError('rank ' + 10**6 * 'x')", "RankError"),
}


@needs_mounts
@pytest.mark.parametrize(
    ("source", "error"), sampled(ON_A_FULL_DISK.values(), 1, *EXERCISED, ids=ON_A_FULL_DISK)
)
def test_the_error_is_reported_on_a_full_disk(
    limited: StartLimited, source: str, error: str
) -> None:
    notebook = limited(RUNS)
    cell = "if dist.get_rank() == 0:\n    fill(os.environ['NBMGPU_RUNS'], 0)\ndist.barrier()"
    error_text = notebook.send(f"%%mgpu --gpus 2 --strategy none\n{cell}\n{source}").fails(error)
    assert ("raised KeyError" if "KeyError" in source else "No space left on device") in error_text
    notebook.run("os.remove(os.environ['NBMGPU_RUNS'] + '/filler')")
    assert notebook.run("%%mgpu --gpus 2\n6 * 7").seen == ["42"]


BEYOND_MEMORY = {
    "a tensor": ("torch.empty(2**34)", "RuntimeError"),
    "an object": ("bytearray(2**36)", "MemoryError"),
}


@pytest.mark.parametrize(
    ("source", "error", "rank"),
    sampled(((*case, rank) for case in BEYOND_MEMORY.values() for rank in (0, 1)), 3, *EXERCISED),
)
def test_exceeding_the_memory_limit_is_reported(
    limited: StartLimited, source: str, error: str, rank: int
) -> None:
    notebook = limited(MEMORY)
    cell = notebook.send(f"%%mgpu --gpus 2\nif dist.get_rank() == {rank}:\n    {source}")
    assert f"Rank {rank} of 2 raised {error}, line 3 of the cell: {source}" in cell.fails(error)
    assert "fewer ranks, a smaller batch" in summary_html(cell)
    notebook.wait_for_ranks_to_exit(10)
    assert notebook.run("%%mgpu --gpus 2\n6 * 7").seen == ["42"]


def test_results_that_do_not_fit_into_memory_raise_an_error(
    limited: StartLimited,
) -> None:
    notebook = limited(MEMORY)
    notebook.run("%%mgpu --gpus 2\n6 * 7")
    notebook.run("""
import mmap, psutil, resource
addresses = mmap.mmap(-1, 2**32)  # ranks inherit the limit and use less
limits = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + 2**29, limits[1]))
""")
    error_text = notebook.send("%%mgpu --gpus 2\nlarge = torch.ones(2**28)").fails("ResultsError")
    assert "could not be brought back" in error_text
    assert "--pull" in error_text
    notebook.run("resource.setrlimit(resource.RLIMIT_AS, limits); addresses.close()")
    assert notebook.value("'large' in globals()") is False
    assert notebook.run("%%mgpu --gpus 2\n6 * 7").seen == ["42"]
