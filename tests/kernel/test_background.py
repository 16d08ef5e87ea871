"""Background runs, attach and stop, runs of other kernels, and ways to call ``%%mgpu``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kernels import WIDGET, Notebook, wait_for

COUNTING = """
total = 0
for number in range(4):
    print("step", number)
    time.sleep(0.3)
    total += 1
"""
ENDLESS = 'n = 3\nprint("ready")\ntime.sleep(1000)\n'


def test_background_output_appears_at_the_cell_that_started_the_run(notebook: Notebook) -> None:
    notebook.run("total = None")
    wait = "import pathlib\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)\n"
    cell = notebook.send(f"%%mgpu --gpus 2 --background\n{COUNTING}{wait}").ok()
    assert notebook.run("print('other')").seen == ["other\n"]
    assert notebook.value("total") is None
    cell.until("step 3")
    assert "running" in notebook.run("%mgpu runs").seen[0]
    notebook.run("from pathlib import Path; Path('go').touch()")
    wait_for(lambda: notebook.value("total") == 4, 10)
    assert cell.text() == "".join(f"step {n}\n" for n in range(4))
    assert "finished" in cell.of("update_display_data")[-1].content["data"]["text/plain"]


def test_attach_shows_all_output_and_writes_results_back(notebook: Notebook) -> None:
    source = f"from IPython.display import HTML, display\ndisplay(HTML('x'))\n{COUNTING}"
    origin = notebook.send(f"%%mgpu --gpus 2 --background\n{source}").until("step 1")
    attached = notebook.run("%mgpu attach")
    assert notebook.value("total") == 4
    whole = ["<IPython.core.display.HTML object>", "".join(f"step {n}\n" for n in range(4))]
    assert attached.seen == whole
    wait_for(lambda: origin.of("comm_close"), 5, origin)
    assert origin.seen == whole
    assert "finished" in notebook.run("%mgpu show").seen[0]
    assert notebook.run("%mgpu attach").seen[-1] == whole[-1], "also after the run has finished"


def test_interrupting_attach_stops_the_run(notebook: Notebook) -> None:
    notebook.run("n = 0")
    notebook.send(f"%%mgpu --gpus 2 --background\n{ENDLESS}").until("ready")
    attached = notebook.send("%mgpu attach").until("ready")
    notebook.interrupt()
    attached.fails("KeyboardInterrupt", 5)
    assert notebook.value("n") == 3


def test_stop_writes_partial_results_back(notebook: Notebook) -> None:
    notebook.run("n = 0")
    cell = notebook.send(f"%%mgpu --gpus 2 --background\n{ENDLESS}").until("ready")
    run = notebook.value("nbmgpu.last_run.id")
    assert notebook.run("%mgpu stop").text() == f"Run {run}: stopped.\n"
    wait_for(lambda: notebook.value("n") == 3, 5)
    assert cell.of("error") == []
    assert "has already ended: stopped" in notebook.run("%mgpu stop").text()


def test_a_second_stop_kills_the_ranks(notebook: Notebook) -> None:
    saving = "try:\n    time.sleep(300)\nexcept KeyboardInterrupt:\n    time.sleep(300)"
    cell = notebook.send(f"%%mgpu --gpus 2 --background\nimport time\nprint('ready')\n{saving}")
    cell.until("ready")
    run = notebook.value("nbmgpu.last_run.id")
    output = notebook.run("%mgpu stop", timeout=30).text()
    assert "five minutes" in output
    assert f"Try: %mgpu stop {run} " in output
    assert notebook.run(f"%mgpu stop {run}").text() == f"Run {run}: stopped.\n"


def test_a_misspelled_subcommand_is_an_error(notebook: Notebook) -> None:
    cell = notebook.send("%mgpu attachx").wait()
    assert "There is no %mgpu attachx" in cell.reply["evalue"]


def test_a_background_error_appears_at_the_cell_that_started_the_run(notebook: Notebook) -> None:
    cell = notebook.send("%%mgpu --gpus 2 --background\n1 / 0").ok()
    wait_for(lambda: cell.of("error"), 10, cell)
    assert cell.of("error")[0].content["ename"] == "ZeroDivisionError"
    assert notebook.run("1").seen == ["1"]


def test_another_kernel_can_attach_to_a_run_and_stop_it(
    notebook: Notebook, new_notebook: Callable[..., Notebook]
) -> None:
    other = new_notebook("other", NBMGPU_RUNS=str(notebook.runs))
    cell = notebook.send(f"%%mgpu --gpus 2\n{ENDLESS}").until("ready")
    assert "running" in other.run("%mgpu runs").seen[0]
    watching = other.send("%mgpu attach").until("ready")
    other.interrupt()
    watching.wait()
    assert watching.reply["status"] == "error", "interrupts attach, not the run"
    assert "running" in other.run("%mgpu runs").seen[0]
    assert "over already" not in (output := other.run("%mgpu stop").text())
    assert output.endswith(": stopped.\n")
    cell.fails("KeyboardInterrupt", 5)


@pytest.mark.parametrize("head", ["%%time\n", "%%capture captured\n"])
def test_other_cell_magics_can_precede(notebook: Notebook, head: str) -> None:
    cell = notebook.run(f"{head}%%mgpu --gpus 2\nprint('x')\nz = 3\n5")
    assert notebook.value("z") == 3
    if "time" in head:
        assert "x\n" in cell.text()
        assert "Wall time" in cell.text()
        assert cell.seen[-1] == "5"
    else:
        assert cell.seen == []
        assert notebook.value("captured.stdout") == "x\n"
        assert not any(WIDGET in o.content["data"] for o in cell.of("display_data"))


def test_a_dry_run_starts_nothing(notebook: Notebook) -> None:
    runs = len(list(notebook.runs.iterdir()))
    text = notebook.run("""%%mgpu --gpus 2 --dry-run
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
""").text()
    for part in ("2 on cpu, cpu", "global batch 8 = 2 ranks x 4", "loader", "KiB", "x, y, loss"):
        assert part in text
    assert text.endswith("Nothing was started.\n")
    assert len(list(notebook.runs.iterdir())) == runs


def test_pull_selects_the_names_that_are_bound(notebook: Notebook) -> None:
    notebook.run("a = b = 0")
    notebook.run("%%mgpu --gpus 2 --pull a\na = 1; b = 1")
    assert notebook.value("a, b") == (1, 0)
    notebook.run("changed = []")
    notebook.run("%%mgpu --gpus 2 --no-pull\na = 2; b = 2; changed.append(3)")
    assert notebook.value("a, b, changed") == (1, 0, [3]), "objects are still updated in place"


def test_seed_equals_manual_seed_in_the_notebook(notebook: Notebook) -> None:
    drawn = [notebook.run("%%mgpu --gpus 2 --seed 3\ntorch.rand(1).item()").seen for _ in "ab"]
    assert drawn == [notebook.run("torch.manual_seed(3); torch.rand(1).item()").seen] * 2


def test_info_lists_versions_and_devices(notebook: Notebook) -> None:
    text = notebook.run("%mgpu info").text()
    assert "torch" in text
    assert "cpu" in text


@pytest.mark.matrix("nbmgpu/engines/local", "nbmgpu/kernel")
def test_fresh_runs_match_runs_of_the_fork_server(notebook: Notebook) -> None:
    train = """%%mgpu --gpus 2 {}
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
print("ready")
rank = dist.get_rank()
n = 3
"""
    notebook.run("import copy; start = copy.deepcopy(model.state_dict())")
    notebook.run(train.format(""))
    notebook.run("warm = model.weight.detach().clone(); model.load_state_dict(start)")
    assert notebook.run(train.format("--fresh")).seen == ["ready\n"]
    assert notebook.value("(warm - model.weight).abs().max().item()") <= 1e-6
    fresh = train.format("--fresh")
    shown = notebook.send(f"{fresh}if rank == 1: raise ValueError('one')\ndist.barrier()").fails(
        "ValueError"
    )
    assert "Rank 1 of 2 raised ValueError, line 9" in shown
    killed = notebook.send(f"{fresh}if rank: os.kill(os.getpid(), 9)\ntime.sleep(100)")
    assert "Rank 1 of 2 was ended by SIGKILL" in killed.fails("RankKilledError")
    notebook.run("n = 0")
    cell = notebook.send(f"{fresh}if rank: time.sleep(100)\ndist.barrier()").until("ready")
    at = notebook.interrupt()
    notebook.wait_for_ranks_to_exit(10)
    cell.fails("KeyboardInterrupt", 5)
    assert cell.replied - at < 3
    assert notebook.value("n") == 3
