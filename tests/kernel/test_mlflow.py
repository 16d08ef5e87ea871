"""MLflow in cells: the notebook's run goes on, and each point is in its store exactly once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kernels import Notebook
from tracked_trainers import LIGHTNING, TRAINER

mlflow = pytest.importorskip("mlflow")
pytest.importorskip("alembic")

# Of MLflow, about the versions of SQLAlchemy, and about its own file store.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

LOOP = """
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    step += 1
    mlflow.log_metric("loss", loss.item(), step=step)
    mlflow.log_metrics({"lr": 0.1, "batch": 8}, step=step)
"""
RESET = """
torch.manual_seed(0)
model.reset_parameters()
step = 0
"""
STORES = ("sqlite", pytest.param("file", marks=pytest.mark.matrix("nbmgpu/trackers")))


class Store:
    """A store of MLflow, as its own client reads it."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.uri = f"sqlite:///{folder}/mlflow.db" if kind == "sqlite" else (folder / "s").as_uri()
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        self.setup = (
            f"import mlflow; mlflow.set_tracking_uri({self.uri!r}); mlflow.set_experiment('e')"
        )

    @property
    def runs(self) -> list[Any]:
        """All runs of the experiment, oldest first."""
        found = self.client.search_runs([self.client.get_experiment_by_name("e").experiment_id])
        return sorted(found, key=lambda run: run.info.start_time)

    @property
    def client(self) -> Any:
        return mlflow.MlflowClient(self.uri)

    def points(self, run: Any) -> dict[str, list[tuple[int, float]]]:
        """Return the points of a run, by metric."""
        history = {
            name: self.client.get_metric_history(run.info.run_id, name) for name in run.data.metrics
        }
        return {n: sorted((p.step, p.value) for p in points) for n, points in history.items()}

    def assert_equal(self, one: Any, two: Any) -> None:
        """Compare two runs: steps, and values to 1e-5."""
        found, expected = self.points(two), self.points(one)
        assert found.keys() == expected.keys()
        for name, points in expected.items():
            assert [step for step, _ in found[name]] == [step for step, _ in points], name
            values = [value for _, value in points]
            assert [v for _, v in found[name]] == pytest.approx(values, abs=1e-5), name


@pytest.fixture
def make_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Store]:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return lambda kind: Store(tmp_path, kind)


@pytest.mark.parametrize("kind", STORES)
def test_the_notebooks_run_goes_on_in_and_after_cells(
    new_notebook: Callable[..., Notebook], make_store: Callable[[str], Store], kind: str
) -> None:
    notebook, store = new_notebook(), make_store(kind)
    notebook.run(store.setup, timeout=120)
    for name, magic in (("one", ""), ("two", "%%mgpu --gpus 2\n")):
        notebook.run(
            f"{RESET}run = mlflow.start_run(run_name={name!r})\nmlflow.log_metric('own', 1)"
        )
        cell = notebook.run(
            f"{magic}mlflow.log_params({{'a': 1}})\n{LOOP}\n"
            "print(mlflow.active_run().info.run_id == run.info.run_id)",
            timeout=120,
        )
        assert cell.seen[-1] == "True\n"
        notebook.run(f"{magic}{LOOP}", timeout=120)
        assert notebook.value("mlflow.active_run().info.run_id == run.info.run_id")
        assert store.client.get_run(notebook.value("run.info.run_id")).info.status == "RUNNING"
        notebook.run("mlflow.log_metric('own', 2, step=1); mlflow.end_run()")
    one, two = store.runs
    assert len(store.points(two)["loss"]) == 6
    assert store.points(two)["own"] == [(0, 1.0), (1, 2.0)]
    assert two.data.params == one.data.params == {"a": "1"}
    assert two.info.status == "FINISHED"
    store.assert_equal(one, two)


@pytest.mark.parametrize("kind", STORES)
def test_runs_that_begin_and_end_in_the_cell(
    new_notebook: Callable[..., Notebook], make_store: Callable[[str], Store], kind: str
) -> None:
    notebook, store = new_notebook(), make_store(kind)
    notebook.run(store.setup, timeout=120)
    for magic in ("", "%%mgpu --gpus 2\n"):
        notebook.run(RESET)
        body = LOOP.replace("\n", "\n    ")
        notebook.run(
            f"{magic}with mlflow.start_run() as run:{body}\n    mlflow.log_text('t', 'a.txt')",
            timeout=120,
        )
        assert notebook.value("mlflow.active_run() is None")
    one, two = store.runs
    assert [one.info.status, two.info.status] == ["FINISHED"] * 2
    assert notebook.value("run.info.run_id") == two.info.run_id
    assert [f.path for f in store.client.list_artifacts(two.info.run_id)] == ["a.txt"]
    store.assert_equal(one, two)
    failing = "%%mgpu --gpus 2\nwith mlflow.start_run():\n    mlflow.log_metric('a', 1)\n    1 / 0"
    notebook.send(failing).fails("ZeroDivisionError", 120)
    assert store.runs[-1].info.status == "FAILED"
    notebook.run(
        "%%mgpu --gpus 2\nrun = mlflow.start_run()\nmlflow.log_metric('a', 1)", timeout=120
    )
    notebook.run("mlflow.log_metric('a', 2, step=1)")  # on one device, it would still be active
    assert store.points(store.runs[-1]) == {"a": [(0, 1.0), (1, 2.0)]}
    notebook.run("%%mgpu --gpus 2\nmlflow.end_run()", timeout=120)
    assert notebook.value("mlflow.active_run() is None")
    assert store.runs[-1].info.status == "FINISHED"
    assert len(store.runs) == 4


@pytest.mark.matrix("nbmgpu/trackers")
@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_cell_that_starts_again_logs_each_point_once(
    new_notebook: Callable[..., Notebook], make_store: Callable[[str], Store], kind: str
) -> None:
    notebook, store = new_notebook(), make_store(kind)
    notebook.run(store.setup, timeout=120)
    notebook.run("linear = model; model = nn.Sequential(linear, nn.Dropout(0.5))")
    for magic in ("", "%%mgpu --gpus 2\n"):
        notebook.run(f"{RESET.replace('model', 'linear')}mlflow.start_run()")
        notebook.run(f"{magic}{LOOP}", timeout=120)
        notebook.run("mlflow.end_run()")
    assert notebook.value("'restarted' in nbmgpu.last_run.view.notices")
    store.assert_equal(*store.runs)


@pytest.mark.matrix("nbmgpu/trackers")
def test_comparisons_log_nothing(
    new_notebook: Callable[..., Notebook], make_store: Callable[[str], Store]
) -> None:
    notebook, store = new_notebook(), make_store("sqlite")
    notebook.run(f"{store.setup}\nrun = mlflow.start_run()\nstep = 0", timeout=120)
    inner = LOOP.replace("\n", "\n    ")
    notebook.run(
        f"%%mgpu compare --strategies ddp --gpus 2 --steps 2{LOOP}\n"
        f"with mlflow.start_run(nested=True):{inner}",
        timeout=200,
    )
    (run,) = store.runs
    assert store.points(run) == {}


@pytest.mark.matrix("nbmgpu/trackers")
def test_a_run_that_goes_on_after_a_rank_was_killed_logs_each_point_once(
    new_notebook: Callable[..., Notebook], make_store: Callable[[str], Store]
) -> None:
    notebook, store = new_notebook(), make_store("sqlite")
    notebook.run(store.setup, timeout=120)
    kill = """
    if step in (2, 5) and not os.path.exists(f"killed-{step}"):
        dist.barrier()
        if dist.get_rank() == 0:
            open(f"killed-{step}", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(100)
"""
    loop = f"for epoch in range(2):{LOOP}".replace("\n", "\n    ")
    for magic, more in (
        ("", ""),
        ("%%mgpu --gpus 2 --checkpoint-every 3steps --max-restarts 2\n", kill),
    ):
        notebook.run(f"{RESET}mlflow.start_run()")
        notebook.run(f"{magic}{loop}{more.replace(chr(10), chr(10) + '    ')}", timeout=200)
        notebook.run("mlflow.end_run()")
    work = notebook.folder / "work"
    assert (work / "killed-2").exists()
    assert (work / "killed-5").exists()
    store.assert_equal(*store.runs)


@pytest.mark.matrix("nbmgpu/trackers")
def test_trainer_of_hugging_face(
    new_notebook: Callable[..., Notebook], make_store: Callable[[str], Store]
) -> None:
    notebook, store = new_notebook(), make_store("sqlite")
    notebook.run(f"{store.setup}\nREPORT_TO = 'mlflow'", timeout=120)
    for name, magic in (("one", ""), ("two", "%%mgpu --gpus 2\n")):
        notebook.run(f"NAME = {name!r}")
        notebook.run(f"{magic}{TRAINER}\ntrainer.train()\nmlflow.end_run()", timeout=200)
    runs = store.runs
    assert [run.info.status for run in runs] == ["FINISHED"] * 2
    one, two = (
        {n: p for n, p in store.points(run).items() if n in ("loss", "learning_rate", "grad_norm")}
        for run in runs
    )
    assert len(two["loss"]) == 6
    for name, points in one.items():
        assert [step for step, _ in two[name]] == [step for step, _ in points]
        assert [v for _, v in two[name]] == pytest.approx([v for _, v in points], abs=1e-5)


@pytest.mark.matrix("nbmgpu/trackers")
def test_logger_of_lightning(
    new_notebook: Callable[..., Notebook], make_store: Callable[[str], Store]
) -> None:
    notebook, store = new_notebook(), make_store("sqlite")
    notebook.run(
        f"""{store.setup}
def loggers():
    return MLFlowLogger("e", run_name=NAME, tracking_uri={store.uri!r})
""",
        timeout=120,
    )
    for name, magic in (("one", ""), ("two", "%%mgpu --gpus 2\n")):
        notebook.run(f"NAME = {name!r}")
        notebook.run(f"{magic}{LIGHTNING}\ntrainer.fit(module, loader)", timeout=200)
    one, two = store.runs
    assert [one.info.status, two.info.status] == ["FINISHED"] * 2
    assert len(store.points(two)["loss"]) == 6
    store.assert_equal(one, two)
