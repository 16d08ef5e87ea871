"""Comet in cells: the notebook's offline experiment goes on, and each point is archived once."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable

import pytest
from kernels import Notebook

pytest.importorskip("comet_ml")
pytestmark = pytest.mark.slow

SETUP = """
import comet_ml
def begin():
    return comet_ml.OfflineExperiment(project_name="p", offline_directory="comet", log_code=False,
        log_env_details=False, log_git_metadata=False, auto_output_logging=False,
        display_summary_level=0)
"""
LOOP = """
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    step += 1
    losses.append(loss.item())
    {log}("loss", loss.item(), step=step)
"""


def points(notebook: Notebook) -> dict[str, list[tuple[int, float]]]:
    """Return the points of the loss of each experiment, by key, from all of its archives."""
    found: dict[str, list[tuple[int, float]]] = {}
    for path in (notebook.folder / "work" / "comet").glob("*.zip"):
        with zipfile.ZipFile(path) as archive:
            key = json.loads(archive.read("experiment.json"))["offline_id"]
            for line in archive.read("messages.json").decode().splitlines():
                message = json.loads(line)
                metric = message["payload"].get("metric", {})
                if message["type"] == "metric_msg" and metric["metricName"] == "loss":
                    found.setdefault(key, []).append((metric["step"], metric["metricValue"]))
    return {key: sorted(values) for key, values in found.items()}


def test_the_notebooks_experiment_goes_on_in_and_after_cells(
    new_notebook: Callable[..., Notebook],
) -> None:
    notebook = new_notebook(COMET_DISABLE_ANNOUNCEMENT="1")
    notebook.run(f"{SETUP}\nexperiment = begin()\nlosses = []; step = 0", timeout=120)
    notebook.run("experiment.log_metric('loss', 0.5, step=0)")
    notebook.run(f"%%mgpu --gpus 2{LOOP.format(log='experiment.log_metric')}", timeout=120)
    running = "comet_ml.get_running_experiment().log_metric"
    notebook.run(f"%%mgpu --gpus 2{LOOP.format(log=running)}", timeout=120)
    assert notebook.value("experiment is comet_ml.get_running_experiment() and experiment.alive")
    assert notebook.value("experiment.curr_step") == 6
    notebook.run("experiment.log_metric('loss', 0.25, step=7); experiment.end()")
    losses = notebook.value("losses")
    assert len(losses) == 6
    expected = [(0, 0.5), *enumerate(losses, start=1), (7, 0.25)]
    assert points(notebook) == {notebook.value("experiment.get_key()"): expected}


@pytest.mark.matrix("nbmgpu/trackers")
def test_an_experiment_of_the_cell_is_archived_once(new_notebook: Callable[..., Notebook]) -> None:
    notebook = new_notebook(COMET_DISABLE_ANNOUNCEMENT="1")
    notebook.run(f"{SETUP}\nlosses = []; step = 0", timeout=120)
    loop = LOOP.format(log="experiment.log_metric")
    notebook.run(f"%%mgpu --gpus 2\nexperiment = begin(){loop}", timeout=120)
    notebook.run("experiment.log_metric('loss', 0.25, step=4); experiment.end()")
    losses = notebook.value("losses")
    expected = [*enumerate(losses, start=1), (4, 0.25)]
    assert points(notebook) == {notebook.value("experiment.get_key()"): expected}
