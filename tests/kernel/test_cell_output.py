"""Output of rank 0 appears as if the cell had run in the kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeGuard

import pytest
from kernels import ExecutedCell, Notebook

from nbmgpu.runs.event_file import EventTail
from nbmgpu.runs.events import Event, Metrics

TRAIN = """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
"""


def progress(cell: ExecutedCell) -> dict[str, list[str]]:
    """Return the counts that the panel showed for each progress bar, by label."""
    shown: dict[str, list[str]] = {}
    for output in cell.of("comm_msg"):
        for bar in output.content["data"].get("state", {}).get("part_progress", ()):
            shown.setdefault(bar["label"], []).append(bar["count"])
    return shown


def test_a_function_of_an_earlier_cell_writes_each_line_once(
    notebook: Notebook, tmp_path: Path
) -> None:
    """It refers to IPython's own ``open``."""
    notebook.run(f"import os; before = os.getcwd(); os.chdir({str(tmp_path)!r})")
    notebook.run("def log(line):\n    with open('log.txt', 'a') as file: file.write(line)")
    notebook.run("%%mgpu --gpus 2\nfor n in range(3):\n    log(f'{n}\\n')")
    notebook.run("os.chdir(before)")
    assert (tmp_path / "log.txt").read_text() == "0\n1\n2\n"


def test_a_training_cell_has_the_same_effects_as_in_the_kernel(notebook: Notebook) -> None:
    notebook.run("identity, gone, _kept = id(model), 1, 0")
    cell = notebook.run(f"""%%mgpu --gpus 2
import math
from collections import OrderedDict as Ordered
{TRAIN}
def area(r):
    return math.pi * r * r
class Point:
    origin = 3
point = Point()
_kept = 5
del gone
loss.item()
""")
    assert cell.of("execute_result")[0].content["data"]["text/plain"] == cell.seen[-1]
    assert cell.seen[-1] == repr(notebook.value("loss.item()"))
    assert notebook.value("id(model) == identity, epoch, _kept") == (True, 1, 5)
    assert notebook.value("round(area(1), 2), isinstance(point, Point), Point.origin") == (
        3.14,
        True,
        3,
    )
    assert notebook.value("'gone' in globals(), math.pi > 3, Ordered.__name__") == (
        False,
        True,
        "OrderedDict",
    )


def test_output_is_streamed_while_the_cell_runs(notebook: Notebook) -> None:
    cell = notebook.run("""%%mgpu --gpus 2
print("first")
time.sleep(1)
print("no line end", end="")
time.sleep(1)
print("last")
""")
    assert cell.time_of("no line end") - cell.time_of("first") > 0.5
    assert cell.time_of("last") - cell.time_of("no line end") > 0.5
    assert cell.replied - cell.started - cell.time_of("first") > 1.5


def test_displays_and_figures_are_in_order_with_prints(notebook: Notebook) -> None:
    cell = notebook.run("""%%mgpu --gpus 2
import matplotlib.pyplot as plt
from IPython.display import HTML, display
print("one")
display(HTML("<b>bold</b>"))
print("two")
plt.plot([1, 2]); plt.show()
print("three")
figure, axes = plt.subplots(); axes.plot([2, 1])
print("four")
7
""")
    assert cell.seen == [
        "one\n", "<IPython.core.display.HTML object>", "two\n", "<png>", "three\nfour\n",
        "<png>", "7",
    ]  # fmt: skip
    assert notebook.run("figure.axes[0].lines[0].get_ydata().tolist()").seen == ["[2, 1]"]


def test_displays_can_be_updated_and_output_can_be_cleared(notebook: Notebook) -> None:
    cell = notebook.run("""%%mgpu --gpus 2
from IPython.display import clear_output, display
handle = display("old", display_id=True)
handle.update("new")
print("to be cleared")
clear_output()
print("after clearing")
""")
    shown, updates = cell.of("display_data"), cell.of("update_display_data")
    old = next(o for o in shown if o.content["data"]["text/plain"] == "'old'")
    assert updates[0].content["data"]["text/plain"] == "'new'"
    assert updates[0].content["transient"] == old.content["transient"]
    kinds = [o.kind for o in cell.outputs]
    after = cell.outputs[kinds.index("clear_output") :]
    assert "RunPanel" in str(after[1].content), "the panel is displayed again"
    assert [o.content["text"] for o in after if o.kind == "stream"] == ["after clearing\n"]


def test_stderr_keeps_its_stream_and_order(notebook: Notebook) -> None:
    cell = notebook.run("""%%mgpu --gpus 2
for number in range(50):
    print("out", number)
    print("err", number, file=sys.stderr)
""")
    lines = [
        (output.content["name"], line)
        for output in cell.of("stream")
        for line in output.content["text"].splitlines()
    ]
    assert lines == [
        (stream, f"{word} {number}")
        for number in range(50)
        for stream, word in (("stdout", "out"), ("stderr", "err"))
    ]


def test_shell_lines_magics_and_await(notebook: Notebook) -> None:
    cell = notebook.run("""%%mgpu --gpus 2
import asyncio
!echo from the shell
files = !echo a; echo b
%time 1 + 1
await asyncio.sleep(0.01)
os.write(1, "raw ü€\\n".encode())
os.system("echo child")
files
""")
    assert "from the shell" in cell.text()
    assert "Wall time" in cell.text()
    assert "raw ü€\nchild\n" in cell.text()
    assert cell.seen[-1] == "['a', 'b']"


@pytest.mark.parametrize(("line", "seen"), [("5;", []), ("None", []), ("5", ["5"])])
def test_the_last_expression_is_displayed_as_in_ipython(
    notebook: Notebook, line: str, seen: list[str]
) -> None:
    assert notebook.run(f"%%mgpu --gpus 2\n{line}").seen == seen


def test_tqdm_bars_are_shown_in_the_panel_and_not_as_text(notebook: Notebook) -> None:
    notebook.run("import tqdm.notebook\nimport tqdm as bars\nfrom tqdm.auto import tqdm, trange")
    cell = notebook.run("""%%mgpu --gpus 2
for i in tqdm(range(8), desc="outer"):
    for j in trange(3, leave=False):
        time.sleep(0.05)
for i in bars.tqdm([1, 2]):
    pass
for i in bars.notebook.tqdm([1, 2], desc="widget"):
    pass
tqdm.write("a line")
bar = tqdm(total=4)
bar.update(4)
bar.close()
""")
    assert cell.seen == ["a line\n"]
    counts = progress(cell)["outer"]
    assert len(counts) > 3
    assert counts == sorted(counts)
    assert all(count.endswith("/ 8") for count in counts)
    final = notebook.value(
        "{k: (p.step, p.total, p.done) for k, p in nbmgpu.last_run.view.progress.items()}"
    )
    assert final == {"tqdm:0": (4, 4, True), "tqdm:1": (3, 3, True)}


def test_many_metrics_are_stored_completely_and_averaged_over_ranks(notebook: Notebook) -> None:
    notebook.run("""%%mgpu --gpus 2 --strategy none
weight = torch.zeros(1, requires_grad=True)
for number in range(10_000):
    weight.sum().backward()
    nbmgpu.log(points=number + dist.get_rank())
""")
    events = max(notebook.runs.iterdir()) / "events"
    for rank in (0, 1):
        events_of_points = [
            e for e in EventTail(events / f"rank-{rank}.jsonl").read() if _is_of_points(e)
        ]
        steps = [step for event in events_of_points for step in event.steps]
        values = [value for event in events_of_points for value in event.values]
        assert steps == list(range(1, 10_001))
        assert values == [number + rank for number in range(10_000)]
    means = "nbmgpu.last_run.metrics.points.tolist() == [n + 0.5 for n in range(10_000)]"
    assert notebook.value(means)


def test_each_log_call_is_a_step_if_nothing_trains(notebook: Notebook) -> None:
    notebook.run("%%mgpu --gpus 2\nfor number in range(5): nbmgpu.log(points=number)")
    points = notebook.value("nbmgpu.last_run.metrics.points.to_dict()")
    assert points == {number: number for number in range(5)}


def _is_of_points(event: Event) -> TypeGuard[Metrics]:
    return isinstance(event, Metrics) and event.name == "points"


@pytest.mark.parametrize("rank", [0, 1])
def test_many_lines_are_stored_completely_and_the_output_is_limited(
    notebook: Notebook, rank: int
) -> None:
    cell = notebook.run(f"""%%mgpu --gpus 2 --strategy none
if dist.get_rank() == {rank}:
    for number in range(100_000):
        print("line number", number)
""")
    log = notebook.newest_log(rank)
    assert log == "".join(f"line number {n}\n" for n in range(100_000))
    assert len(cell.text()) < 1_200_000
    assert len(cell.outputs) < 400
    assert cell.replied - cell.started < 30
    if rank == 0:
        assert "more bytes of output in" in cell.text()
        assert cell.text().endswith("line number 99999\n")
    else:
        assert cell.text() == ""


def test_long_stderr_output_is_complete(notebook: Notebook) -> None:
    cell = notebook.run("""%%mgpu --gpus 2
for number in range(2500):
    print("e" * 79, file=sys.stderr)
""")
    assert cell.text("stderr") == ("e" * 79 + "\n") * 2500
    assert cell.text() == ""


def test_alternating_streams_are_merged_into_few_messages(notebook: Notebook) -> None:
    cell = notebook.run("""%%mgpu --gpus 2
for number in range(5000):
    print("out")
    print("err", file=sys.stderr)
""")
    assert len(cell.outputs) < 5000
    assert notebook.newest_log(0) == "out\nerr\n" * 5000


def test_the_summary_replaces_the_widget(notebook: Notebook) -> None:
    cell = notebook.run(f"%%mgpu --gpus 2\n{TRAIN}")
    final = cell.of("update_display_data")[-1].content["data"]
    assert set(final) == {"text/html", "text/plain"}
    assert "finished" in final["text/plain"]
    assert "loss" in final["text/html"]
    assert len(cell.of("comm_close")) == 1
    json.dumps(final)


def test_output_of_a_first_start_is_cleared(notebook: Notebook) -> None:
    """Under ``--exact auto``, dropout starts the cell again with whole batches."""
    notebook.run("model = nn.Sequential(nn.Dropout(0.5), model)")
    cell = notebook.run("""%%mgpu --gpus 2 --cpu --exact auto
print("begin")
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
print("end")
""").ok()
    kinds = [output.kind for output in cell.outputs]
    assert kinds.count("clear_output") == 1
    after = cell.outputs[kinds.index("clear_output") :]
    text = "".join(o.content["text"] for o in after if o.kind == "stream")
    assert text.count("begin") == 1
    assert text.endswith("end\n")
    panels = [o for o in after if o.kind == "display_data" and "nbmgpu" in o.content["metadata"]]
    assert len(panels) == 1
    summaries = [o for o in after if o.kind == "update_display_data"]
    assert "has started again with whole batches" in summaries[-1].content["data"]["text/plain"]
