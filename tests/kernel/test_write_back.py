"""Results are written back in the bundle's memory, and are invisible to other ranks."""

from __future__ import annotations

from kernels import Notebook

HELD_MIB = """
import os, pathlib
def held_mib(name):
    found = 0
    for f in pathlib.Path('/proc/self/fd').iterdir():
        try:
            found += f'memfd:nbmgpu-{name}' in os.readlink(f) and 512 * os.stat(f).st_blocks
        except OSError:  # closed meanwhile
            pass
    return found >> 20
"""


def test_weights_are_written_back_in_place(notebook: Notebook) -> None:
    notebook.run(f"{HELD_MIB}\nimport torch\nx = torch.ones(1 << 24)\nmine = x")
    earlier = notebook.value("held_mib('result-0')")  # of earlier tests
    for times in (1, 2):
        notebook.run(
            "%%mgpu --gpus 2 --cpu --strategy none\n"
            "import time\nx += 1\n"
            "if os.environ['RANK'] == '0': time.sleep(1)  # rank 1 has sent its results by then"
        )
        assert notebook.value("mine is x and x.sum().item() / x.numel()") == 1.0 + times
    assert notebook.value("held_mib('bundle')") >= 64
    assert notebook.value("held_mib('result-0')") < earlier + 4


def test_a_running_rank_does_not_see_results_of_rank_0(
    notebook: Notebook,
) -> None:
    notebook.run("import os, time, torch\nx = torch.ones(1 << 24)")
    cell = (
        "%%mgpu --gpus 2 --cpu --strategy none\n"
        "if os.environ['RANK'] == '1': time.sleep(1.5)\n"
        "seen = x.mean().item()\n"
        "x += 1"
    )
    for times in (1, 2):
        notebook.run(cell)
        assert notebook.value("nbmgpu.last_run.results[1]['seen']") == times
        assert notebook.value("x.mean().item()") == 1 + times


def test_changes_of_other_ranks_are_discarded(notebook: Notebook) -> None:
    notebook.run("import os, torch\nx = torch.ones(1 << 24)")
    notebook.run("%%mgpu --gpus 3 --cpu --strategy none\nx += int(os.environ['RANK']) + 1")
    assert notebook.value("x.mean().item()") == 2
    notebook.run("%%mgpu --gpus 2 --cpu\nseen = x.mean().item()")
    assert notebook.value("seen, nbmgpu.last_run.results[1]['seen']") == (2, 2)


def test_a_run_ends_with_its_last_rank(notebook: Notebook) -> None:
    gaps = []
    for _ in range(5):
        notebook.run("%%mgpu --gpus 1 --cpu\n1")
        gaps.append(
            notebook.value(
                "(lambda e: e[-1].time - max(x.time for x in e if type(x).__name__ == 'Exited'))("
                "__import__('nbmgpu.runs.event_file').runs.event_file.EventTail("
                "nbmgpu.last_run.folder / 'events' / 'launcher.jsonl').read())"
            )
        )
    assert min(gaps) < 0.04, gaps


def test_ranks_keep_no_copy_of_the_output(notebook: Notebook) -> None:
    cell = notebook.run(
        "%%mgpu --gpus 1 --cpu\nimport sys\nprint('stdout')\nprint('and', file=sys.stderr)\n"
        "kept = len(getattr(get_ipython().history_manager, 'outputs', ()))"
    )
    assert "stdout" in cell.text()
    assert notebook.value("kept") == 0
