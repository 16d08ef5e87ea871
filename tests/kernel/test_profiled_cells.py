"""``%%mgpu --profile`` in a real kernel: the table, the summary, ``%mgpu show`` and the report."""

from __future__ import annotations

from kernels import Notebook

TRAIN = """
for epoch in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
"""


def test_a_profiled_cell(notebook: Notebook) -> None:
    cell = notebook.run(f"%%mgpu --profile --gpus 2 --cpu\n{TRAIN}")
    summary = cell.of("update_display_data")[-1].content["data"]
    assert "steps 5-10, mean of 2 ranks: " in summary["text/plain"]
    assert "<summary>Profile of steps 5-10, mean of 2 ranks: " in summary["text/html"]
    rows = notebook.value("[(r.rank, r.steps) for r in nbmgpu.last_run.profile.rows]")
    assert rows == [(0, "5-10"), (1, "5-10")]
    sizes = notebook.value("[os.path.getsize(r.trace) for r in nbmgpu.last_run.profile.rows]")
    assert sizes == notebook.value("[row.nbytes for row in nbmgpu.last_run.profile.rows]")
    assert "communication" in notebook.run("nbmgpu.last_run.profile").seen[-1]
    assert "to open at https://ui.perfetto.dev" in notebook.run("%mgpu show").seen[0]
    notebook.run("%mgpu export --report report.html")
    assert "Profile of steps 5-10" in notebook.value("open('report.html').read()")
    assert notebook.value("model.weight.grad is not None")


def test_steps_that_cannot_be_profiled_are_an_error_before_the_cell(notebook: Notebook) -> None:
    message = notebook.send(f"%%mgpu --profile ten\n{TRAIN}").fails("OptionError")
    assert "'ten' does not name the steps to profile" in message
    assert message.splitlines()[-1] == "Try: %%mgpu --strategy ddp --profile 5-10"
