"""Where memory, /dev/shm or the disk run out: a clear word or a way around, and nothing stays.

Kernels here live in mounts of their own, so that what is filled is nobody else's.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from conftest import TRAINING
from kernels import ExecutedCell, Notebook, notebook_in

MOUNTS = ("unshare", "--mount", "--propagation", "private", "sh", "-c")
SHM = 'mount -t tmpfs -o size=16m tmpfs /dev/shm && exec "$0" "$@"'
RUNS = 'mkdir -p "$NBMGPU_RUNS" && mount -t tmpfs -o size=4m tmpfs "$NBMGPU_RUNS" && exec "$0" "$@"'
MEMORY = 'ulimit -v 8388608 && exec "$0" "$@"'

FILL = """
def fill(path, leave):
    room = os.statvfs(path)
    with open(f"{path}/filler", "wb") as file:
        file.write(bytes(room.f_bavail * room.f_frsize - leave))
"""

RUNS_HERE = "sorted(os.listdir(os.environ['NBMGPU_RUNS']))"

permitted = subprocess.run([*MOUNTS, SHM, "true"], check=False, capture_output=True).returncode == 0
needs_mounts = pytest.mark.skipif(not permitted, reason="only root may mount, elsewhere than here")

Cramped = Callable[[str], Notebook]


@pytest.fixture(scope="module")
def kernels_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cramped]:
    """Makes one kernel below each command."""
    made: dict[str, Notebook] = {}
    with ExitStack() as stack:

        def make(command: str) -> Notebook:
            if command not in made:
                within = (*MOUNTS, command) if "mount" in command else ("sh", "-c", command)
                home = tmp_path_factory.mktemp("cramped")
                made[command] = stack.enter_context(notebook_in(home, within)).load()
            return made[command]

        yield make


@pytest.fixture
def cramped(kernels_here: Cramped) -> Cramped:
    """Gives a kernel below a shell command that takes something away from it."""

    def ready(command: str) -> Notebook:
        notebook = kernels_here(command)
        notebook.run(f"{TRAINING}{FILL}")
        notebook.gone(10)
        if command == SHM:
            notebook.run("for name in os.listdir('/dev/shm'): os.remove('/dev/shm/' + name)")
        return notebook

    return ready


def what_the_summary_says(cell: ExecutedCell) -> str:
    return str(cell.of("update_display_data")[-1].content["data"]["text/html"])


@needs_mounts
def test_a_full_dev_shm_is_no_limit_for_what_is_sent(cramped: Cramped) -> None:
    notebook = cramped(SHM)
    notebook.run("fill('/dev/shm', 0)\ndata = torch.ones(2**24)")
    notebook.run("%%mgpu --gpus 2\nfor x, y in loader: pass\ndata += 1\nfloat(data.sum())")
    assert notebook.value("float(data.sum()), os.listdir('/dev/shm')") == (2.0**25, ["filler"])


WITHOUT_SHARED_MEMORY = {
    "workers without a lock": (
        0, "for _ in DataLoader(loader.dataset, num_workers=2): pass",
        "OSError", "num_workers=0"),
    "workers without a batch": (
        2**19, "import time; time.sleep(3 * dist.get_rank())  # else there is no room for locks\n"
        "for _ in DataLoader(torch.ones(8, 2**16), batch_size=4, num_workers=2): pass",
        "RuntimeError", "fewer workers"),
    "a shared tensor": (
        2**16, "torch.ones(2**20).share_memory_()", "RuntimeError", "more room in /dev/shm"),
    "a mapped array": (
        2**16, "from multiprocessing.shared_memory import SharedMemory\n"
        "memory = SharedMemory(create=True, size=2**20)\nmemory.buf[:] = bytes(2**20)",
        "RankKilledError", "fewer DataLoader workers"),
}  # fmt: skip


@needs_mounts
@pytest.mark.parametrize(
    ("left", "source", "error", "remedy"), WITHOUT_SHARED_MEMORY.values(), ids=WITHOUT_SHARED_MEMORY
)
def test_a_cell_that_wants_dev_shm_when_it_is_full(
    cramped: Cramped, left: int, source: str, error: str, remedy: str
) -> None:
    notebook = cramped(SHM)
    notebook.run(f"fill('/dev/shm', {left})")
    cell = notebook.send(f"%%mgpu --gpus 2 --strategy none\n{source}")
    said = cell.fails(error)
    assert "Rank 0 of 2" in said or "Rank 1 of 2" in said
    assert remedy in what_the_summary_says(cell)
    notebook.gone(10)
    assert notebook.value("os.listdir('/dev/shm')") == ["filler"]
    notebook.run("os.remove('/dev/shm/filler')")
    notebook.run(f"%%mgpu --gpus 2 --strategy none\n{source}")
    notebook.gone(10)
    assert notebook.value("[n for n in os.listdir('/dev/shm') if n.startswith('torch')]") == []


@needs_mounts
def test_what_a_killed_rank_had_in_dev_shm_goes_with_it(cramped: Cramped) -> None:
    notebook = cramped(SHM)
    notebook.send(
        "%%mgpu --gpus 2\nfrom multiprocessing.shared_memory import SharedMemory\n"
        "memory = SharedMemory(create=True, size=2**20)\n"
        "dist.barrier()\nos.kill(os.getpid(), signal.SIGKILL)"
    ).fails("RankKilledError")
    notebook.gone(10)
    assert notebook.value("os.listdir('/dev/shm')") == []


@needs_mounts
def test_what_workers_that_ended_long_before_had_in_dev_shm_is_removed(cramped: Cramped) -> None:
    notebook = cramped(SHM)
    notebook.run(f"fill('/dev/shm', {2**19})")
    notebook.run(
        "%%mgpu --gpus 2 --strategy none\n"
        "from contextlib import suppress\n"
        "with suppress(RuntimeError):\n"
        "    for _ in DataLoader(torch.ones(8, 2**16), batch_size=4, num_workers=2): pass\n"
        "import gc; gc.collect()\n"
        "left = [name for name in os.listdir('/dev/shm') if name.startswith('torch')]\n"
        "anothers = f'/dev/shm/torch_{os.getpid()}_1_1'\n"
        "if dist.get_rank() == 0:\n"
        "    os.close(os.open(anothers, os.O_CREAT)); os.chown(anothers, 1, 1)\n"
        "dist.barrier()"
    )
    assert notebook.value("bool(left)"), "or there is nothing to see here"
    notebook.gone(10)
    there = notebook.value("sorted(os.listdir('/dev/shm'))")
    assert there == ["filler", notebook.value("os.path.basename(anothers)")]


@needs_mounts
def test_a_disk_that_is_filled_by_what_ranks_print(cramped: Cramped) -> None:
    notebook = cramped(RUNS)
    flood = "%%mgpu --gpus 2 --strategy none\nfor number in range(300_000): print('line', number)"
    cell = notebook.send(flood)
    said = cell.fails("OSError")
    assert "No space left on device" in said
    assert "Rank 0 of 2" in said or "Rank 1 of 2" in said
    assert "NBMGPU_RUNS" in what_the_summary_says(cell)
    notebook.gone(10)
    notebook.run("fill(os.environ['NBMGPU_RUNS'], 0)")
    before = notebook.value(RUNS_HERE)
    said = notebook.send("%%mgpu --gpus 2\n6 * 7").fails("LaunchError")
    assert "No space left on device" in said
    assert "Try: set NBMGPU_RUNS" in said
    assert notebook.value(RUNS_HERE) == before, "no half of a run stays"
    notebook.run("import shutil; shutil.rmtree(nbmgpu.last_run.folder)")
    notebook.run("os.remove(os.environ['NBMGPU_RUNS'] + '/filler')")
    assert notebook.run("%%mgpu --gpus 2\n6 * 7").seen == ["42"]


ON_A_FULL_DISK = {
    "an exception": ("raise KeyError('rank ' + str(dist.get_rank()))", "KeyError"),
    "more words than there is room for": ("raise KeyError('rank ' + 10**6 * 'x')", "RankError"),
    "a last line without an end": ("print(5000 * 'x', end='')", "OSError"),
}


@needs_mounts
@pytest.mark.parametrize(("source", "error"), ON_A_FULL_DISK.values(), ids=ON_A_FULL_DISK)
def test_why_a_cell_failed_is_told_on_a_full_disk(
    cramped: Cramped, source: str, error: str
) -> None:
    notebook = cramped(RUNS)
    cell = "if dist.get_rank() == 0:\n    fill(os.environ['NBMGPU_RUNS'], 0)\ndist.barrier()"
    said = notebook.send(f"%%mgpu --gpus 2 --strategy none\n{cell}\n{source}").fails(error)
    assert ("raised KeyError" if "KeyError" in source else "No space left on device") in said
    notebook.run("os.remove(os.environ['NBMGPU_RUNS'] + '/filler')")
    assert notebook.run("%%mgpu --gpus 2\n6 * 7").seen == ["42"]


BEYOND_MEMORY = {
    "a tensor": ("torch.empty(2**34)", "RuntimeError"),
    "an object": ("bytearray(2**36)", "MemoryError"),
}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("source", "error"), BEYOND_MEMORY.values(), ids=BEYOND_MEMORY)
def test_a_rank_that_wants_more_than_its_limit_says_so(
    cramped: Cramped, source: str, error: str, rank: int
) -> None:
    notebook = cramped(MEMORY)
    cell = notebook.send(f"%%mgpu --gpus 2\nif dist.get_rank() == {rank}:\n    {source}")
    assert f"Rank {rank} of 2 raised {error}, line 3 of the cell: {source}" in cell.fails(error)
    assert "fewer ranks, a smaller batch" in what_the_summary_says(cell)
    notebook.gone(10)
    assert notebook.run("%%mgpu --gpus 2\n6 * 7").seen == ["42"]


def test_results_that_the_notebook_has_no_room_for_are_not_lost_in_silence(
    cramped: Cramped,
) -> None:
    notebook = cramped(MEMORY)
    notebook.run("%%mgpu --gpus 2\n6 * 7")
    notebook.run("""
import mmap, psutil, resource
addresses = mmap.mmap(-1, 2**32)  # ranks have the limit too, and more room below it
limits = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + 2**29, limits[1]))
""")
    said = notebook.send("%%mgpu --gpus 2\nlarge = torch.ones(2**28)").fails("ResultsError")
    assert "could not be brought back" in said
    assert "--pull" in said
    notebook.run("resource.setrlimit(resource.RLIMIT_AS, limits); addresses.close()")
    assert notebook.value("'large' in globals()") is False
    assert notebook.run("%%mgpu --gpus 2\n6 * 7").seen == ["42"]
