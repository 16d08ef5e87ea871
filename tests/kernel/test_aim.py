"""Aim in cells: the notebook writes what the cell has tracked, once, as its process has the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kernels import Notebook

pytest.importorskip("aim")
pytestmark = pytest.mark.slow

SETUP = "import aim; losses = []; step = 0"
ARGUMENTS = "repo='repo', system_tracking_interval=None, capture_terminal_logs=False"
LOOP = """
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    step += 1
    losses.append(loss.item())
    run.track(loss.item(), name="loss", step=step)
"""
TRACES = "[t for each in run.meta_run_tree.collect()['traces'].values() for t in each.items()]"


def test_the_notebooks_run_tracks_each_point_of_the_cell_once(
    new_notebook: Callable[..., Notebook],
) -> None:
    notebook = new_notebook()
    notebook.run(
        f"""{SETUP}
class Counted(aim.Run):
    def track(self, value, **given):
        tracked.append((given["step"], value))
        super().track(value, **given)
tracked = []
run = Counted({ARGUMENTS})
run.track(0.5, name="loss", step=0)
""",
        timeout=120,
    )
    notebook.run(f"%%mgpu --gpus 2{LOOP}\nrun['lr'] = 0.1", timeout=120)
    notebook.run("run.track(0.25, name='loss', step=4)")
    assert notebook.value("run['lr']") == 0.1
    losses = notebook.value("losses")
    assert len(losses) == 3
    expected = [(0, 0.5), *enumerate(losses, start=1), (4, 0.25)]
    assert notebook.value("tracked") == expected
    ((name, trace),) = notebook.value(TRACES)
    assert (name, trace["first_step"], trace["last_step"]) == ("loss", 0, 4)
    notebook.run("run.close()")


def test_a_run_of_the_cell_goes_on_in_the_notebook(new_notebook: Callable[..., Notebook]) -> None:
    notebook = new_notebook()
    notebook.run(SETUP, timeout=120)
    notebook.run(f"%%mgpu --gpus 2\nrun = aim.Run({ARGUMENTS}){LOOP}\nrun['lr'] = 0.1", timeout=120)
    assert notebook.value("run['lr']") == 0.1
    notebook.run("run.track(0.25, name='loss', step=4)")
    traces = notebook.value(TRACES)
    assert {name for name, _ in traces} == {"loss"}
    first = min((trace for _, trace in traces), key=lambda trace: trace["first_step"])
    assert first["first"] == pytest.approx(notebook.value("losses")[0])
    assert max(trace["last_step"] for _, trace in traces) == 4
    notebook.run("run.close()")
    assert (
        len(list((notebook.folder / "work" / "repo" / ".aim" / "meta" / "chunks").iterdir())) == 1
    )
