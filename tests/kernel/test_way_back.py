"""What ranks have changed comes home in the memory in which it went out, seen by nobody else."""

from __future__ import annotations

from kernels import Notebook

HELD = """
import os, pathlib
def held(name):
    found = 0
    for f in pathlib.Path('/proc/self/fd').iterdir():
        try:
            found += f'memfd:nbmgpu-{name}' in os.readlink(f) and 512 * os.stat(f).st_blocks
        except OSError:  # closed meanwhile
            pass
    return found >> 20
"""


def test_weights_come_home_without_new_memory(notebook: Notebook) -> None:
    notebook.run(f"{HELD}\nimport torch\nx = torch.ones(1 << 24)\nmine = x")
    earlier = notebook.value("held('result-0')")  # of earlier tests
    for times in (1, 2):
        notebook.run(
            "%%mgpu --gpus 2 --cpu --strategy none\n"
            "import time\nx += 1\n"
            "if os.environ['RANK'] == '0': time.sleep(1)  # the other one has sent its results then"
        )
        assert notebook.value("mine is x and x.sum().item() / x.numel()") == 1.0 + times
    assert notebook.value("held('bundle')") >= 64
    assert notebook.value("held('result-0')") < earlier + 4


def test_a_rank_that_is_still_at_work_does_not_see_what_rank_0_brings_home(
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


def test_what_other_ranks_have_changed_is_in_nobodys_way(notebook: Notebook) -> None:
    notebook.run("import os, torch\nx = torch.ones(1 << 24)")
    notebook.run("%%mgpu --gpus 3 --cpu --strategy none\nx += int(os.environ['RANK']) + 1")
    assert notebook.value("x.mean().item()") == 2
    notebook.run("%%mgpu --gpus 2 --cpu\nseen = x.mean().item()")
    assert notebook.value("seen, nbmgpu.last_run.results[1]['seen']") == (2, 2)


def test_a_run_is_over_when_its_last_rank_is(notebook: Notebook) -> None:
    gaps = []
    for _ in range(5):
        notebook.run("%%mgpu --gpus 1 --cpu\n1")
        gaps.append(
            notebook.value(
                "(lambda e: e[-1].time - max(x.time for x in e if type(x).__name__ == 'Exited'))("
                "__import__('nbmgpu.runs.events').runs.events.EventTail("
                "nbmgpu.last_run.folder / 'events' / 'launcher.jsonl').read())"
            )
        )
    assert min(gaps) < 0.04, gaps


def test_no_copy_of_the_output_is_kept_in_a_rank(notebook: Notebook) -> None:
    cell = notebook.run(
        "%%mgpu --gpus 1 --cpu\nimport sys\nprint('said')\nprint('and', file=sys.stderr)\n"
        "kept = len(getattr(get_ipython().history_manager, 'outputs', ()))"
    )
    assert "said" in cell.text()
    assert notebook.value("kept") == 0
