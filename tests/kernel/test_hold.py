"""``%%mgpu --hold`` in a real kernel: its ranks go on with later cells, and none is left over."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import psutil
import pytest
from kernels import Notebook, wait_for

TRAIN = """
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
pid = os.getpid()
"""
HOLD = f"%%mgpu --gpus 2 --strategy fsdp --hold\n{TRAIN}"
ENDLESS = "print('ready')\nwhile True:" + TRAIN.replace("\n", "\n    ")
EVALUATE = "%%mgpu\nwith torch.no_grad(): score = model(torch.ones(1, 4)).sum().item()"


@pytest.fixture
def holding(notebook: Notebook) -> Iterator[Notebook]:
    """A kernel that holds the ranks of a cell."""
    notebook.run("before = model.weight.detach().clone()")
    notebook.run(HOLD)
    yield notebook
    notebook.run("if nbmgpu.kernel.held_ranks._held: nbmgpu.release(discard=True)")


def rank_pids(notebook: Notebook) -> list[int]:
    """Return the pids of the processes of runs."""
    return sorted(process.pid for process in notebook.run_processes())


def test_cells_run_in_the_same_ranks_until_they_are_released(holding: Notebook) -> None:
    held, pid = rank_pids(holding), holding.value("pid")
    assert holding.value("torch.equal(before, model.weight)")
    holding.run(EVALUATE)
    shown = holding.run("%mgpu show").seen[0]
    assert "`model`, `optimizer` stay in the ranks" in shown
    holding.run(f"%%mgpu\n{TRAIN}")
    assert (rank_pids(holding), holding.value("pid")) == (held, pid)
    assert "held" in holding.run("%mgpu runs").seen[0]
    assert "`model`, `optimizer` stay in the ranks" in holding.run("%mgpu info").text()
    holding.run("%mgpu release")
    holding.wait_for_ranks_to_exit(10)
    assert "Held ranks" not in holding.run("%mgpu info").text()
    assert not holding.value("torch.equal(before, model.weight)")
    score = holding.value("score")
    assert isinstance(score, float)
    assert holding.value("nbmgpu.last_run.labels.name") == "%mgpu release"
    assert "No ranks are held" in holding.send("%mgpu release").fails("OptionError")


def test_discard_ends_the_ranks_and_leaves_the_model(holding: Notebook) -> None:
    assert "as before the cell" in holding.run("%mgpu release --discard").text()
    holding.wait_for_ranks_to_exit(10)
    assert holding.value("torch.equal(before, model.weight)")


def test_what_the_notebook_has_changed_is_overwritten_on_request(holding: Notebook) -> None:
    holding.run("with torch.no_grad(): model.weight.fill_(7)")
    refused = holding.send("%mgpu release").fails("OptionError")
    assert "%mgpu release --overwrite for the ranks' model" in refused
    assert "either" in holding.send("%mgpu release --discard --overwrite").fails("OptionError")
    holding.run("%mgpu release --overwrite")
    holding.wait_for_ranks_to_exit(10)
    assert not holding.value("(model.weight == 7).any().item()")
    assert not holding.value("torch.equal(before, model.weight)")


def test_a_plain_cell_with_a_held_model_is_warned(holding: Notebook) -> None:
    holding.run("def evaluate(): return model(torch.ones(1, 4))")
    for cell in ("model.eval()", "evaluate()"):
        assert "`model`: this cell sees what the notebook had before" in holding.run(cell).text(
            "stderr"
        )
    for cell in ("x = torch.ones(3)", EVALUATE, "nbmgpu.last_run.id"):
        assert "this cell sees" not in holding.run(cell).text("stderr")


def test_ranks_stay_after_an_error_in_the_code_of_the_notebook(holding: Notebook) -> None:
    held = rank_pids(holding)
    wrong = "%%mgpu\nwith torch.no_grad(): model(torch.ones(1, 4)); missing[0]"
    holding.send(wrong).fails("UnknownNameError")
    holding.run("missing = None")
    holding.send(wrong).fails("TypeError")
    assert holding.value("nbmgpu.last_run.state") == "failed"
    assert {*held} <= {*rank_pids(holding)}, "torch may have started a process of its own"
    holding.run(EVALUATE)
    holding.run("%mgpu release")
    assert not holding.value("torch.equal(before, model.weight)")


def test_an_interrupted_cell_ends_the_ranks_and_the_model_comes_home(holding: Notebook) -> None:
    cell = holding.send(f"%%mgpu\n{ENDLESS}").until("ready")
    holding.interrupt()
    cell.fails("KeyboardInterrupt", 10)
    holding.wait_for_ranks_to_exit(10)
    assert not holding.value("torch.equal(before, model.weight)")
    assert holding.value("type(model.weight) is nn.Parameter")
    assert "No ranks are held" in holding.send("%mgpu release").fails("OptionError")
    assert holding.run("%%mgpu --gpus 2\n6 * 7").seen == ["42"]


def test_an_exception_on_one_rank_is_shown_while_others_wait_for_it(holding: Notebook) -> None:
    only_here = "import torch.distributed as dist\nif dist.get_rank() == 0:\n    raise ValueError"
    holding.send(f"%%mgpu\n{only_here}\n{TRAIN}").fails("ValueError", 30)
    holding.wait_for_ranks_to_exit(10)


def test_an_interrupt_between_cells_does_nothing(holding: Notebook) -> None:
    held = rank_pids(holding)
    cell = holding.send("print('ready'); time.sleep(100)").until("ready")
    holding.interrupt()
    cell.fails("KeyboardInterrupt", 10)
    holding.run(EVALUATE)
    assert rank_pids(holding) == held


def test_neither_a_time_limit_nor_hang_detection_ends_ranks_that_wait(notebook: Notebook) -> None:
    options = "--timeout 3 --hang-after 1 --on-hang stop"
    notebook.run(f"%%mgpu --gpus 2 --strategy fsdp --hold {options}\n{TRAIN}")
    notebook.run("time.sleep(5)")
    notebook.run(EVALUATE)
    notebook.run("%mgpu release")


def test_a_comparison_is_refused_while_ranks_are_held(holding: Notebook) -> None:
    failed = holding.send(f"%%mgpu compare ddp fsdp\n{TRAIN}").fails("OptionError")
    assert "%mgpu release" in failed


def test_a_rank_that_is_killed_while_it_waits_is_reported_once(holding: Notebook) -> None:
    psutil.Process(holding.value("pid")).kill()
    holding.wait_for_ranks_to_exit(10)
    assert "have ended: one was killed" in holding.send(EVALUATE).fails("LaunchError")
    assert holding.run("%%mgpu --gpus 2\n6 * 7").seen == ["42"]


@pytest.mark.alone
@pytest.mark.parametrize("end", ["shutdown", "kill"])
def test_no_rank_outlives_its_kernel(new_notebook: Callable[..., Notebook], end: str) -> None:
    notebook = new_notebook()
    notebook.run(HOLD)
    processes = notebook.descendants()
    assert rank_pids(notebook)
    if end == "kill":
        os.kill(notebook.pid, signal.SIGKILL)
    else:
        notebook.client.shutdown()

    def left() -> list[psutil.Process]:
        return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    wait_for(lambda: not left(), 10, left)
