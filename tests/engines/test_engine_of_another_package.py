"""An engine of another package runs ranks as the built-in one does.

It starts them as plain subprocesses with a TCP rendezvous, and it sends bundle and results
through files.  Whatever assumes forked ranks, shared memory or a launcher fails here.
"""

from __future__ import annotations

import itertools
import os
import time

import psutil
import pytest
import torch
from idioms.comparison import assert_equal
from idioms.idiom import Idiom
from idioms.tables import BY_NAME, TABLES
from matrix_selection import sampled
from staged import Stage

import nbmgpu
from nbmgpu.devices.probe import Machine
from nbmgpu.engines.registry import get_engine
from nbmgpu.errors import OptionError, RankKilledError, RunTimeoutError
from nbmgpu.frontend.info import info_text
from nbmgpu.options.run_options import RunOptions
from nbmgpu.runs.engine_plugins import engine_names
from nbmgpu.runs.run import Run

IDIOMS = itertools.chain(
    *(TABLES[table][:2] for table in ("loaders", "losses", "optimizers", "evaluation"))
)


@pytest.mark.parametrize(
    "idiom", sampled(((idiom,) for idiom in IDIOMS), 6, "nbmgpu/engines", "nbmgpu/serialization")
)
def test_idioms_have_the_numbers_of_one_device(idiom: Idiom, subprocess_engine: str) -> None:
    result = assert_equal(idiom, engine=subprocess_engine)
    assert result.split() == idiom.split
    assert result.run.record.options.engine == subprocess_engine
    supervisor = result.run.view.launcher
    assert supervisor is not None
    assert supervisor.pid == os.getpid()
    assert not {"bundle", "result-0", "result-1"} & {p.name for p in result.run.folder.iterdir()}


def test_a_model_that_is_sharded_over_ranks_is_gathered(subprocess_engine: str) -> None:
    assert_equal(BY_NAME["AdamW"], engine=subprocess_engine, strategy="fsdp")


def test_its_runs_cannot_be_detached(subprocess_engine: str) -> None:
    with pytest.raises(OptionError, match=r"it has no --detach.*\n.*--engine local --detach"):
        nbmgpu.run("1", {}, engine=subprocess_engine, gpus=1, detach=True)


def test_results_of_all_ranks_are_read(subprocess_engine: str) -> None:
    namespace = {"__name__": "__main__", "values": [1]}
    cell = "import os\nvalues.append(2); rank = int(os.environ['RANK']); seed = hash('x')\nrank"
    run = nbmgpu.run(cell, namespace, engine=subprocess_engine, strategy="none", gpus=3)
    assert run is not None
    assert [run.results[rank]["rank"] for rank in range(3)] == [0, 1, 2]
    assert len({run.results[rank]["seed"] for rank in range(3)}) == 1
    assert namespace["values"] == [1, 2]


def test_the_cells_exception_is_raised_here(subprocess_engine: str) -> None:
    cell = """
import os, time
if os.environ["RANK"] == "1":
    raise KeyError("here")
time.sleep(60)
"""
    start = time.monotonic()
    with pytest.raises(KeyError, match="here"):
        nbmgpu.run(cell, {"__name__": "__main__"}, engine=subprocess_engine, strategy="none")
    assert time.monotonic() - start < 40, "the other rank was not ended"


def test_a_rank_that_is_killed_fails_the_run(subprocess_engine: str) -> None:
    cell = """
import os, time
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), 9)
time.sleep(60)
"""
    with pytest.raises(RankKilledError, match="SIGKILL"):
        nbmgpu.run(cell, {"__name__": "__main__"}, engine=subprocess_engine, strategy="none")


def started(run: Run) -> None:
    """Wait until all ranks run the cell."""
    deadline = time.monotonic() + 60
    while "ready" not in run.log(0) or "ready" not in run.log(1):
        assert not run.over
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_stop_writes_partial_results_back(subprocess_engine: str) -> None:
    namespace = {"__name__": "__main__", "model": torch.nn.Linear(1, 1)}
    cell = """
import time, torch
with torch.no_grad():
    model.weight.fill_(7)
print("ready", flush=True)
time.sleep(60)
"""
    run = nbmgpu.run(cell, namespace, engine=subprocess_engine, gpus=2, background=True)
    assert run is not None
    started(run)
    assert get_engine(subprocess_engine).is_alive(run)
    Run(run.folder).stop()  # as another process does
    with pytest.raises(KeyboardInterrupt, match="back in the notebook"):
        nbmgpu.attach(run.id)
    assert namespace["model"].weight.item() == 7
    pids = [view.process.pid for view in run.view.ranks if view.process]
    assert len(pids) == 2
    assert not any(map(psutil.pid_exists, pids))


def test_force_stop_kills_ranks(subprocess_engine: str) -> None:
    namespace = {"__name__": "__main__"}
    cell = "print('ready', flush=True)\nimport time\ntime.sleep(60)"
    run = nbmgpu.run(cell, namespace, engine=subprocess_engine, gpus=2, background=True)
    assert run is not None
    started(run)
    run.stop(force=True)
    with pytest.raises(KeyboardInterrupt):
        nbmgpu.attach(run.id)
    assert run.state == "stopped"


def test_a_time_limit_ends_the_run(subprocess_engine: str) -> None:
    cell = "import time\ntime.sleep(60)"
    with pytest.raises(RunTimeoutError):
        nbmgpu.run(cell, {"__name__": "__main__"}, engine=subprocess_engine, timeout=1)


def test_it_is_an_option_like_others(subprocess_engine: str) -> None:
    assert engine_names() == ("local", "kubernetes", "ray", "slurm", subprocess_engine)
    options = RunOptions.parse(f"--engine {subprocess_engine}")
    assert options.engine == subprocess_engine
    assert RunOptions.parse(options.line()) == options
    with pytest.raises(OptionError, match=f"--engine {subprocess_engine}"):
        RunOptions.parse("--engine subproces")
    assert "subprocess  runs end with this kernel" in info_text(Machine(cores=2, memory=1 << 30))


def test_a_run_of_an_engine_that_is_not_installed_can_be_read() -> None:
    with Stage() as stage:
        staged = stage(engine="elsewhere")
        staged.start()
        assert staged.polled().state == "running"
        staged.run.stop()
        assert staged.run.is_asked_to_stop
    with pytest.raises(OptionError, match="There is no engine 'elsewhere'"):
        get_engine("elsewhere")
