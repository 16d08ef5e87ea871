"""TensorBoard in cells: each point is in the folder exactly once, also beside the notebook's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kernels import Notebook, wait_for
from tracked_trainers import LIGHTNING, TRAINER

pytest.importorskip("tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

Points = list[tuple[int, float]]

LOOP = """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        step += 1
        writer.add_scalar("loss", loss.item(), step)
    writer.add_histogram("weights", model.weight, epoch)
"""
RESET = """
torch.manual_seed(0)
model.reset_parameters()
step = 0
"""


def scalars(folder: Path) -> dict[str, Points]:
    """Return the points of a folder, as TensorBoard reads them."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
    events.Reload()
    tags = events.Tags()
    points = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags["scalars"]}
    histograms = {
        tag: [(e.step, 0.0) for e in events.Histograms(tag)] for tag in tags["histograms"]
    }
    return points | histograms


def assert_equal(found: dict[str, Points], expected: dict[str, Points]) -> None:
    """Compare steps, and values to 1e-5."""
    assert found.keys() == expected.keys()
    for tag, points in expected.items():
        assert [step for step, _ in found[tag]] == [step for step, _ in points], tag
        values = [value for _, value in points]
        assert [value for _, value in found[tag]] == pytest.approx(values, abs=1e-5), tag


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        "torch.utils.tensorboard",
        pytest.param("tensorboardX", marks=pytest.mark.matrix("nbmgpu/trackers")),
    ],
)
def test_the_notebooks_writer_goes_on_in_and_after_cells(
    new_notebook: Callable[..., Notebook], module: str
) -> None:
    pytest.importorskip(module)
    notebook = new_notebook()
    notebook.run(f"from {module} import SummaryWriter", timeout=120)
    for name, magic in (("one", ""), ("two", "%%mgpu --gpus 2\n")):
        notebook.run(f"{RESET}writer = SummaryWriter({name!r})\nwriter.add_scalar('own', 0.5, 0)")
        notebook.run(f"{magic}{LOOP}", timeout=120)
        notebook.run(f"{magic}{LOOP}", timeout=120)
        notebook.run("writer.add_scalar('own', 1.5, 1); writer.close()")
    work = notebook.folder / "work"
    found = scalars(work / "two")
    assert len(found["loss"]) == 12
    assert found["own"] == [(0, 0.5), (1, 1.5)]
    assert_equal(found, scalars(work / "one"))


def test_a_writer_of_the_cell_comes_back_usable(new_notebook: Callable[..., Notebook]) -> None:
    notebook = new_notebook()
    begin = "from torch.utils.tensorboard import SummaryWriter\nwriter = SummaryWriter({!r})"
    for name, magic in (("one", ""), ("two", "%%mgpu --gpus 2\n")):
        notebook.run(RESET)
        more = "\nwriter.add_hparams({'lr': 0.1}, {'final': loss.item()}, run_name='lr')"
        notebook.run(f"{magic}{begin.format(name)}{LOOP}{more}", timeout=120)
        notebook.run("writer.add_scalar('loss', 9.0, step + 1); writer.close()")
    work = notebook.folder / "work"
    assert scalars(work / "two")["loss"][-1] == (7, 9.0)
    assert_equal(scalars(work / "two"), scalars(work / "one"))
    assert_equal(scalars(work / "two" / "lr"), scalars(work / "one" / "lr"))


@pytest.mark.matrix("nbmgpu/trackers")
def test_a_cell_that_starts_again_logs_each_point_once(
    new_notebook: Callable[..., Notebook],
) -> None:
    notebook = new_notebook()
    notebook.run("from torch.utils.tensorboard import SummaryWriter", timeout=120)
    notebook.run("linear = model; model = nn.Sequential(linear, nn.Dropout(0.5))")
    loop = LOOP.replace("model.weight", "linear.weight")
    for name, magic in (("one", ""), ("two", "%%mgpu --gpus 2\n")):
        notebook.run(f"{RESET.replace('model', 'linear')}writer = SummaryWriter({name!r})")
        notebook.run(f"{magic}{loop}", timeout=120)
        notebook.run("writer.close()")
    assert notebook.value("'restarted' in nbmgpu.last_run.view.notices")
    work = notebook.folder / "work"
    assert_equal(scalars(work / "two"), scalars(work / "one"))


@pytest.mark.matrix("nbmgpu/trackers")
def test_a_run_in_the_background_logs_by_itself(new_notebook: Callable[..., Notebook]) -> None:
    notebook = new_notebook()
    notebook.run("from torch.utils.tensorboard import SummaryWriter", timeout=120)
    notebook.run(f"{RESET}writer = SummaryWriter('logs')")
    wait = "import pathlib\nwriter.flush()\nwhile not pathlib.Path('go').exists(): time.sleep(0.1)"
    notebook.run(f"%%mgpu --gpus 2 --background{LOOP}{wait}", timeout=120)
    folder = notebook.folder / "work" / "logs"
    wait_for(lambda: len(scalars(folder).get("loss", [])) == 6, 60)
    notebook.run("for i in range(3): writer.add_scalar('own', 1.0, i)")  # in its own file meanwhile
    notebook.run("import pathlib; pathlib.Path('go').touch()")
    wait_for(lambda: notebook.value("step") == 6, 60)
    notebook.run("writer.add_scalar('own', 1.0, 3); writer.close()")
    assert scalars(folder)["own"] == [(i, 1.0) for i in range(4)]
    assert len(scalars(folder)["loss"]) == 6


@pytest.mark.matrix("nbmgpu/trackers")
def test_comparisons_log_nothing(new_notebook: Callable[..., Notebook]) -> None:
    notebook = new_notebook()
    notebook.run("from torch.utils.tensorboard import SummaryWriter", timeout=120)
    notebook.run(f"{RESET}writer = SummaryWriter('logs')")
    notebook.run(f"%%mgpu compare --strategies ddp --gpus 2 --steps 2{LOOP}", timeout=200)
    notebook.run("writer.add_scalar('own', 1.0, 0); writer.close()")
    assert scalars(notebook.folder / "work" / "logs") == {"own": [(0, 1.0)]}


@pytest.mark.matrix("nbmgpu/trackers")
def test_a_run_that_goes_on_after_a_rank_was_killed_logs_each_point_once(
    new_notebook: Callable[..., Notebook],
) -> None:
    notebook = new_notebook()
    notebook.run("from torch.utils.tensorboard import SummaryWriter", timeout=120)
    for name, magic in (
        ("one", ""),
        ("two", "%%mgpu --gpus 2 --checkpoint-every 2steps --max-restarts 1\n"),
    ):
        logged = 'writer.add_scalar("loss", loss.item(), step)\n'
        loop = LOOP if name == "one" else LOOP.replace(logged, logged + KILL)
        notebook.run(f"{RESET}writer = SummaryWriter({name!r}, flush_secs=1)")
        notebook.run(f"{magic}writer.add_text('config', 'lr')\n{loop}", timeout=120)
        notebook.run("writer.close()")
    work = notebook.folder / "work"
    assert (work / "killed").exists()
    assert_equal(scalars(work / "two"), scalars(work / "one"))


KILL = """\
        if step == 5 and not os.path.exists("killed"):
            dist.barrier()
            if dist.get_rank() == 0:
                writer.flush()
                open("killed", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(100)
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["cell", "notebook"])
def test_trainer_of_hugging_face(new_notebook: Callable[..., Notebook], where: str) -> None:
    notebook = new_notebook()
    for name, magic in (("one", ""), ("two", "%%mgpu --gpus 2\n")):
        notebook.run(f"NAME = {name!r}; REPORT_TO = 'tensorboard'")
        if where == "notebook":
            notebook.run(TRAINER, timeout=120)
        setup = TRAINER if where == "cell" else ""
        notebook.run(f"{magic}{setup}\ntrainer.train()", timeout=200)
    found, expected = (scalars(notebook.folder / "work" / name) for name in ("two", "one"))
    assert len(found["train/loss"]) == 6
    of_training = {"train/loss", "train/learning_rate", "train/grad_norm"}
    assert_equal(
        {tag: found[tag] for tag in of_training}, {tag: expected[tag] for tag in of_training}
    )
    assert {tag: len(p) for tag, p in found.items()} == {t: len(p) for t, p in expected.items()}
    assert len(list((notebook.folder / "work" / "two").glob("*tfevents*"))) == 1


LOGGERS = """
def loggers():
    return [TensorBoardLogger(NAME, "tb"), CSVLogger(NAME, "csv")]
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["cell", "notebook"])
def test_loggers_of_lightning(new_notebook: Callable[..., Notebook], where: str) -> None:
    notebook = new_notebook()
    for name, magic in (("one", ""), ("two", "%%mgpu --gpus 2\n")):
        notebook.run(f"NAME = {name!r}{LOGGERS}")
        if where == "notebook":
            notebook.run(LIGHTNING, timeout=120)
        setup = LIGHTNING if where == "cell" else ""
        notebook.run(f"{magic}{setup}\ntrainer.fit(module, loader)", timeout=200)
    work = notebook.folder / "work"
    for logger in ("tb", "csv"):
        assert [p.name for p in (work / "two" / logger).iterdir()] == ["version_0"], logger
    found = scalars(work / "two" / "tb" / "version_0")
    assert len(found["loss"]) == 6
    assert_equal(found, scalars(work / "one" / "tb" / "version_0"))
    metrics = [
        (work / name / "csv" / "version_0" / "metrics.csv").read_text().splitlines()
        for name in ("two", "one")
    ]
    assert len(metrics[0]) == len(metrics[1]) == 7
