"""A reference runs the cell on one device beside the ranks, and compares their gradients."""

from __future__ import annotations

import os
import re
import signal
import socket
import textwrap
import time
from pathlib import Path

import psutil
import pytest
import torch
from idioms.comparison import compare, compare_whole_batches, run_both
from idioms.decisions import before_backward
from idioms.idiom import TRAIN, Idiom, idiom
from idioms.notebook import notebook, on_ranks
from idioms.unrecognized import UNRECOGNIZED
from idioms.whole_batch import train
from matrix_selection import sampled

import nbmgpu
from nbmgpu.report import text_format
from nbmgpu.report.summary import summary_text
from nbmgpu.runs.run import Run
from nbmgpu.system.landlock import supported_version

EXERCISED = "nbmgpu/rank/reference", "tests/idioms"

HIDDEN = before_backward("loss = loss + model(x)[0].mean()")
"""A cell whose difference no rule finds."""


def steps_compared(run: Run) -> tuple[int, bool] | None:
    """Return how many steps the reference has compared, and whether these are all."""
    verified = run.view.reports.verified
    return None if verified is None else (verified.steps, verified.is_whole)


@pytest.mark.parametrize("cell", sampled(((c,) for c in UNRECOGNIZED), 3, *EXERCISED))
def test_other_gradients_start_the_cell_again(cell: Idiom) -> None:
    result = compare_whole_batches(cell, exact="auto")
    result.assert_equal()
    assert "than one device" in result.run.view.notices["restarted"].text
    never = compare_whole_batches(cell, exact="never")
    assert never.wrong, "the numbers do not differ on shards, so this shows nothing"


@pytest.mark.parametrize(
    ("strategy", "ranks"), [("zero1", 2), ("zero2", 2), ("fsdp", 2), ("fsdp", 3), ("hsdp", 4)]
)
def test_parts_of_gradients_are_compared(strategy: str, ranks: int) -> None:
    result = compare(idiom("plain", TRAIN), ranks, strategy=strategy, exact="auto")
    result.assert_equal()
    assert steps_compared(result.run) == (12, True)
    hidden = compare_whole_batches(idiom("hidden", HIDDEN), ranks, strategy=strategy, exact="auto")
    hidden.assert_equal()
    text = hidden.run.view.notices["restarted"].text
    assert re.search(r"than one device: that of model\.\w+\.\w+ in step 1 is \S+ off", text), text


EQUAL = {
    "Adam": ("opt = torch.optim.Adam(model.parameters())", TRAIN),
    "two optimizers": (
        "opt = torch.optim.SGD(model.body.parameters(), lr=0.1)\n"
        "other = torch.optim.Adam(model.head.parameters())",
        TRAIN.replace("opt.step()", "opt.step(); other.step(); other.zero_grad()"),
    ),
    "frozen and unused parameters": (
        "model.body.weight.requires_grad_(False)\nmodel.unused = nn.Linear(2, 2)\n"
        "opt = torch.optim.SGD(model.parameters(), lr=0.1)",
        TRAIN,
    ),
    "sparse gradients": (
        "table = nn.Embedding(4, 4, sparse=True)\n"
        "model = nn.Sequential(table, nn.Linear(4, 4))\n"
        "opt = torch.optim.SGD(model.parameters(), lr=0.1)",
        TRAIN.replace("model(x)", "model(y)"),
    ),
    "bf16 autocast": (
        "",
        TRAIN.replace(
            "loss = F",
            "with torch.autocast('cpu', torch.bfloat16): out = model(x)\n        loss = F",
        ).replace("F.cross_entropy(model(x), y)", "F.cross_entropy(out.float(), y)"),
    ),
    "a bf16 model": (
        "model.to(torch.bfloat16)",
        TRAIN.replace("F.cross_entropy(model(x), y)", "F.cross_entropy(model(x.bfloat16()), y)"),
    ),
    "a gradient of zeros": ("", TRAIN.replace("model(x)", "model(x) - model(x) + model(x)")),
    "an attention's bias, whose gradient is rounding": (
        "model = nn.Sequential(nn.Unflatten(1, (2, 4)), nn.TransformerEncoderLayer(4, 2, 8, 0.0, "
        "batch_first=True), nn.Flatten(), nn.Linear(8, 4))\n"
        "opt = torch.optim.Adam(model.parameters(), lr=1e-3)",
        TRAIN,
    ),
    "losses that become infinite": (
        "",
        TRAIN.replace("F.cross_entropy(model(x), y)", "(model(x) * 1e25).pow(4).mean()"),
    ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_rounding_is_no_difference(name: str) -> None:
    setup, cell = EQUAL[name]
    run = run_both(cell, setup, exact="auto").run
    assert "restarted" not in run.view.notices
    steps = 24 if name == "two optimizers" else 12
    assert steps_compared(run) == (steps, True)


CLOSURE = """
for x, y in loader:
    def closure():
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss
    losses.append(opt.step(closure).item())
"""

HIDDEN_IN_CLOSURE = CLOSURE.replace("model(x), y)", "model(x), y) + model(x)[0].mean()")


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp"])
def test_a_closure_is_compared_after_its_evaluation(strategy: str) -> None:
    result = run_both(CLOSURE, strategy=strategy, exact="auto")
    assert result.difference() < 1e-6
    assert steps_compared(result.run) == (6, True)
    hidden = run_both(HIDDEN_IN_CLOSURE, strategy=strategy, exact="auto")
    assert "than one device" in hidden.run.view.notices["restarted"].text
    assert hidden.difference() < 1e-6


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_the_first_step_with_several_evaluations_is_compared(search: str | None) -> None:
    """How far a line search goes depends on rounding, so later steps are not comparable."""
    setup = f"opt = torch.optim.LBFGS(model.parameters(), max_iter=3, line_search_fn={search!r})"
    run = run_both(CLOSURE, setup, exact="auto").run
    assert "restarted" not in run.view.notices
    assert steps_compared(run) == (1, False)
    hidden = run_both(HIDDEN_IN_CLOSURE, setup, exact="auto").run
    assert "in step 1" in hidden.view.notices["restarted"].text


FAILING = """
for step, (x, y) in enumerate(loader):
    if {condition}:
        raise ValueError("a bad batch")
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("condition", "steps", "error", "text"),
    [
        ("step == 3", 3, ValueError, "a bad batch"),
        ("(x == X[22]).all(1).any()", 2, ValueError, "a bad batch"),
        ("(x @ torch.ones(9)).sum() if step == 3 else 0", 3, RuntimeError, r"size mismatch.*\(4\)"),
    ],
    ids=["on all ranks", "on the last rank", "with the size of the batch"],
)
def test_what_fails_on_one_device_fails_at_once(
    condition: str, steps: int, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        run_cell(FAILING.format(condition=condition))
    run = nbmgpu.last_run
    assert run is not None
    assert "restarted" not in run.view.notices
    assert "literal batch size" not in summary_text(run)
    assert steps_compared(run) == (steps, False)


def run_cell(cell: str, tmp_path: Path | None = None, **options: object) -> Run:
    """Run a cell in a new notebook, in ``tmp_path``."""
    before = os.getcwd()
    os.chdir(tmp_path or before)
    try:
        return nbmgpu.run(
            textwrap.dedent(cell), notebook(), **on_ranks(2, {"exact": "auto", **options})
        )
    finally:
        os.chdir(before)


def test_what_the_cell_writes_is_written_once(tmp_path: Path) -> None:
    cell = """
    import os
    os.makedirs("made/here", exist_ok=True)
    log = open("made/log.txt", "a")
    for x, y in loader:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        print(loss.item() > 0, file=log)
    log.close()
    lines = open("made/log.txt").read().splitlines()
    """
    run = run_cell(cell, tmp_path)
    assert (tmp_path / "made/log.txt").read_text() == "True\n" * 6
    assert steps_compared(run) == (6, True)


def test_shadows_of_the_reference_are_its_own(tmp_path: Path) -> None:
    cell = """
    import json
    for step, (x, y) in enumerate(loader):
        with open("step.json", "w") as file:
            json.dump([step] * 5000, file)
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
        assert json.load(open("step.json")) == [step] * 5000
    """
    run = run_cell(cell, tmp_path)
    assert steps_compared(run) == (6, True)


def test_compiled_code_of_the_reference_writes_nothing(tmp_path: Path) -> None:
    cell = (
        TRAIN
        + """
import ctypes
if torch.distributed.get_world_size() == 1 or torch.distributed.get_rank() == 0:
    fd = ctypes.CDLL(None).creat(b"made", 0o600)
    os.write(fd, b"%d," % torch.distributed.get_world_size())
"""
    )
    run = run_cell("import os\n" + cell, tmp_path)
    assert (tmp_path / "made").read_text() == "2,"
    assert run.state == "finished"


def test_seeds_that_are_drawn_are_those_of_the_ranks() -> None:
    cell = """
    order = np.random.default_rng().permutation(len(X))
    weights = torch.randn(4, generator=torch.Generator().manual_seed(random.Random().randrange(99)))
    for x, y in DataLoader(TensorDataset(X[order], Y[order]), batch_size=8):
        opt.zero_grad()
        (F.cross_entropy(model(x), y, reduction="none") * weights[y].exp()).mean().backward()
        opt.step()
    """
    run = run_cell(cell)
    assert "restarted" not in run.view.notices
    assert steps_compared(run) == (6, True)


def one_epoch_after(effect: str) -> str:
    """Return a cell that does something and trains for six steps."""
    return TRAIN.replace("for epoch in range(2):", f"{effect}\nfor epoch in range(1):")


@pytest.mark.parametrize(
    ("effect", "reason"),
    [
        ("!echo made >> made.txt", "the cell has run !echo made"),
        (
            "import socket; socket.create_server(('127.0.0.1', {port})).close()",
            "the cell has called socket.bind(('127.0.0.1',",
        ),
    ],
)
def test_the_reference_ends_before_it_does_what_others_see(
    effect: str, reason: str, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    effect = effect.format(port=f"{port} + torch.distributed.get_rank()")
    run = run_cell(one_epoch_after(effect), tmp_path)
    assert run.state == "finished"
    assert steps_compared(run) == (0, False)
    assert f"not compared with one device: {reason}" in text_format.verified(run.view)
    if "echo" in effect:
        assert (tmp_path / "made.txt").read_text() == "made\n"


def test_a_program_that_only_tells_about_the_machine_does_not_count() -> None:
    """mlflow asks for the platform when it is imported, which a trainer may do."""
    ask = "import platform; platform._uname_cache = None; platform.processor()"
    cell = TRAIN.replace("model(x)", "F.dropout(model(x), 0.5)")
    result = run_both(f"{ask}\n{cell}", exact="auto")
    assert result.difference() <= 1e-5
    assert "restarted" in result.run.view.notices


@pytest.mark.skipif(not supported_version(), reason="needs Linux with Landlock")
@pytest.mark.parametrize(
    "effect",
    [
        "import subprocess; subprocess.run('echo made >> made.txt', shell=True)",
        "import os; os.system('echo made >> made.txt')",
        "import sqlite3; sqlite3.connect(':memory:').close()",
    ],
)
def test_processes_of_the_reference_write_nothing(effect: str, tmp_path: Path) -> None:
    run = run_cell(one_epoch_after(effect), tmp_path)
    assert steps_compared(run) == (6, True)
    if "echo" in effect:
        assert (tmp_path / "made.txt").read_text() == "made\n" * 2  # of each rank


def test_what_the_reference_saves_is_its_own(tmp_path: Path) -> None:
    save = """
import safetensors.torch
os.makedirs("saved", exist_ok=True)
torch.save([torch.distributed.get_world_size()], "saved/size.pt")
safetensors.torch.save_file({"a": X}, "saved/x.safetensors")
assert torch.load("saved/size.pt") == [torch.distributed.get_world_size()]
"""
    run = run_cell(f"import os{one_epoch_after(save)}", tmp_path)
    assert steps_compared(run) == (6, True)
    assert torch.load(tmp_path / "saved/size.pt") == [2]
    assert (tmp_path / "saved/x.safetensors").exists()


def test_a_folder_that_no_rank_makes_is_its_own(tmp_path: Path) -> None:
    save = """
folder = f"runs/size {torch.distributed.get_world_size()}"
os.makedirs(f"{folder}/weights", exist_ok=True)
os.mkdir(f"{folder}/logs")
torch.save(X, f"{folder}/weights/x.pt")
with open(f"{folder}/logs/log.txt", "w") as log: log.write("begun")
assert os.path.isdir(folder) and torch.equal(torch.load(f"{folder}/weights/x.pt"), X)
if torch.distributed.get_world_size() == 1:
    assert os.listdir(f"{folder}/logs") == ["log.txt"]
    assert [path.name for path in pathlib.Path(folder).glob("*/*.pt")] == ["x.pt"]
    os.remove(f"{folder}/weights/x.pt")
    assert not os.path.exists(f"{folder}/weights/x.pt")
"""
    run = run_cell(f"import os, pathlib{one_epoch_after(save)}", tmp_path)
    assert steps_compared(run) == (6, True), text_format.verified(run.view)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["size 2"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_loader_with_workers_is_compared(workers: int) -> None:
    setup = f"loader = DataLoader(dataset, batch_size=8, num_workers={workers})"
    run = run_both(HIDDEN, setup, exact="auto").run
    assert "than one device" in run.view.notices["restarted"].text


def test_a_cell_that_cannot_start_again_says_how_its_gradients_differ() -> None:
    cell = "import subprocess\n" + HIDDEN.replace(
        "        opt.step()\n", "        opt.step()\n        subprocess.run(['true'])\n"
    )
    run = run_cell(cell)
    text = run.view.notices["other-gradients"].text
    assert "trains with other gradients than one device" in text
    assert "subprocess.Popen" in text
    assert "--exact always" in text


def test_in_the_background_a_notice_says_it() -> None:
    run = run_cell(HIDDEN, background=True)
    nbmgpu.attach(run.id)
    run.refresh()
    assert "--exact always" in run.view.notices["other-gradients"].text


def test_without_verification_there_is_no_process() -> None:
    run = run_cell(TRAIN, verify=0)
    assert steps_compared(run) is None
    assert not (run.folder / "events/reference.jsonl").exists()


def test_the_time_for_it_is_limited() -> None:
    slow = TRAIN.replace("opt.step()", "opt.step(); import time; time.sleep(0.3)")
    run = run_cell(slow, verify=0.5)
    steps, is_whole = steps_compared(run) or (0, True)
    assert 2 <= steps < 12
    assert not is_whole


def test_the_number_of_steps_is_limited() -> None:
    run = run_cell(TRAIN.replace("range(2)", "range(50)"), verify=30)
    assert steps_compared(run) == (256, False)
    assert run.duration < 20


SLOW_ALONE = TRAIN.replace(
    "opt.step()",
    "opt.step(); import os, time; time.sleep(60 if torch.distributed.get_world_size() == 1 else 0)",
)
"""A cell that takes long on one device: ranks have to wait for the comparison."""


def reference_of(run: Run) -> psutil.Process:
    """Return the process of the reference: the launcher's child that is no rank."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        run.refresh()
        ranks = {view.process.pid for view in run.view.ranks if view.process is not None}
        if run.view.launcher is not None and len(ranks) == 2:
            children = psutil.Process(run.view.launcher.pid).children()
            others = [child for child in children if child.pid not in ranks]
            if others and all(view.exited is not None for view in run.view.ranks):
                return others[0]
        time.sleep(0.02)
    raise AssertionError("there is no reference")


@pytest.mark.parametrize("how", ["killed", "stopped", "suspended"])
def test_a_run_does_not_depend_on_its_reference(how: str) -> None:
    run = run_cell(SLOW_ALONE, background=True, timeout=20)
    process = reference_of(run)
    if how == "killed":
        process.send_signal(signal.SIGKILL)
    elif how == "suspended":
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        run.stop()
    else:
        run.stop()
    nbmgpu.attach(run.id)
    run.refresh()
    assert run.view.ending == "finished"
    assert not process.is_running()


COUNTED = "\n{before}" + TRAIN + "        {count}\n"

COUNTS = {
    "in a dict": ("seen = {}", "seen['n'] = seen.get('n', 0) + len(x)"),
    "in a list": ("sizes = []", "sizes.append(x.shape[0])"),
    "shapes": ("shapes = []", "shapes.append(tuple(x.shape))"),
    "words": ("words = []", "words.append(f'{x.shape} of {epoch}')"),
    "of a tensor": ("n = 0", "n += int(torch.ones_like(y).sum())"),
    "of the model": ("model.samples = 0", "model.samples += len(x)"),
    "a tensor": ("n = torch.tensor(0)", "n += y.numel()"),
    "a buffer": (
        "model.register_buffer('seen', torch.zeros(1, dtype=torch.long))",
        "model.seen += len(x)",
    ),
    "gathered outputs": ("kept = []", "kept.append(model(x).detach().argmax(1))"),
    "a number of a batch, as a tensor": ("", "mine = y.double().sum()"),
    "an accuracy, as a tensor": (
        "accuracies = []",
        "accuracies.append((model(x).argmax(1) == y).float().mean())",
    ),
    "an average": ("mean = 1.0", "mean += 0.1 * (x.numel() - mean)"),
    "a namespace": (
        "from types import SimpleNamespace; state = SimpleNamespace(n=0)",
        "state.n += len(x)",
    ),
    "a line that is printed": ("", "print(f'[{len(losses)}/12] {len(x):>5d} {loss.item():.2f}')"),
    "labels that are printed": ("", "print(y)"),
    "rows that are printed": ("", "print(x, loss.item())"),
    "what is saved": ("import io", "torch.save({'out': model(x), 'y': y}, io.BytesIO())"),
    "a scaler of scikit-learn": (
        "from sklearn.preprocessing import StandardScaler; scaler = StandardScaler()",
        "scaler.partial_fit(x.numpy())",
    ),
    "a column": (
        "import pandas as pd; table = pd.DataFrame({'n': [0]})",
        "table.loc[0, 'n'] += len(x)",
    ),
    "a column of counts": (
        "import pandas as pd; counts = pd.Series(0, range(4))",
        "counts = counts.add(pd.Series(y.numpy()).value_counts(), fill_value=0)",
    ),
    "an object of a module beside the notebook": (
        "from idioms.meter import Meter; meter = Meter()",
        "meter.update(x)",
    ),
}


@pytest.mark.parametrize(("before", "count"), COUNTS.values(), ids=COUNTS)
def test_what_counts_a_shard_starts_again(before: str, count: str) -> None:
    cell = COUNTED.format(before=before, count=count)
    result = compare_whole_batches(idiom("counts", cell), exact="auto")
    result.assert_equal()
    text = result.run.view.notices["restarted"].text
    assert "other values than one device: `" in text or "counts by the size" in text


UNEVEN = f"""{TRAIN}
for x, y in loader:
    for label in y.unique().tolist():
        model.zero_grad()
        F.cross_entropy(model(x[y == label]), y[y == label]).backward()
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_other_numbers_of_backward_passes_start_again(ranks: int) -> None:
    """A rank that has done is at the end of the loop, where parts of the last batch are joined."""
    cell = idiom("uneven", f"{UNEVEN}largest = x.max().item()\n")
    compare_whole_batches(cell, ranks, exact="auto").assert_equal()


def test_a_first_shard_that_cannot_be_loaded_starts_again() -> None:
    setup = (
        "def collate(samples):\n"
        "    kept = [sample for sample in samples if sample[0].sum() != total]\n"
        "    return torch.utils.data.default_collate(kept)\n"
        "X[:2] = 0.0; total = 0.0\n"
        "loader = DataLoader(TensorDataset(X, Y), batch_size=4, collate_fn=collate)\n"
    )
    result = compare_whole_batches(idiom("first shard", TRAIN, setup=setup), exact="auto")
    result.assert_equal()
    assert "restarted" in result.run.view.notices


def test_objects_that_keep_a_shard_are_named() -> None:
    setup = "class Trainer:\n    def keep(self, y):\n        self.y = y\ntrainer = Trainer()\n"
    run = run_both(f"{TRAIN}        trainer.keep(y)\n", setup, exact="auto").run
    assert run.view.notices["rank-0-values"].text.startswith("`trainer`: the value is rank 0's")


def test_what_counts_beside_a_clock_starts_again() -> None:
    count = "seen['n'] = seen.get('n', 0) + len(x)"
    cell = COUNTED.format(before="import time; seen = {}", count=count)
    result = compare_whole_batches(idiom("counts", cell), exact="auto")
    result.assert_equal()
    assert "`seen['n']` is 16 in step 5, not 32" in result.run.view.notices["restarted"].text


@pytest.mark.parametrize(
    ("before", "count"),
    [
        ("import time", "now = time.time(); words = f'{now} {loss.item():.4f}'"),
        ("import time", "took = round(time.process_time(), 1); at = time.strftime('%H:%M:%S')"),
        ("import time; begun = time.time()", "took = int(10 * (time.time() - begun))"),
        (
            "import os",
            "size = len(x); shape = x.shape; n = torch.tensor(len(x)); pid = os.getpid()",
        ),
        ("best = 9.0", "best = min(best, loss.item()); steps = len(losses)"),
        ("", "batch = [x, y]; pair = x, y; mine = y.double()"),
        ("", "label = y[0]; index = torch.tensor(len(losses))"),
        ("import time", "print(epoch, loss.item(), time.process_time(), int(time.time()))"),
        ("import io", "torch.save([model.state_dict(), losses], io.BytesIO())"),
        ("", "print(losses[-3:], model.head.bias, {'step': [len(losses)]}, y.dtype)"),
        ("import pandas as pd", "log = pd.DataFrame({'step': [len(losses)], 'loss': losses[-1:]})"),
        ("ranks = torch.distributed.get_world_size()", "pass"),
    ],
)
def test_values_of_a_rank_are_no_difference(before: str, count: str) -> None:
    run = run_cell(COUNTED.format(before=before, count=count))
    assert "restarted" not in run.view.notices
    assert steps_compared(run) == (12, True)


OF_EPOCHS = (
    "\n{before}"
    + train("F.cross_entropy(out, y)", "out = model(x)").replace(
        "for epoch in range(2):", "def run_epoch():"
    )
    + """    return (out.argmax(1) == y).float().mean().item()
for epoch in range(6):
    accuracies.append(run_epoch())
    took = {took}
"""
)


@pytest.mark.parametrize(
    ("before", "took"), [("", "0.0"), ("import time", "time.time()")], ids=["plain", "clock"]
)
def test_a_metric_after_the_loop_of_a_function_is_that_of_all_samples(
    before: str, took: str
) -> None:
    setup = "accuracies = []\nloader = DataLoader(dataset, batch_size=11)\n"
    cell = OF_EPOCHS.format(before=before, took=took)
    result = run_both(cell, setup + "torch.manual_seed(1)", exact="auto")
    assert result.ranks["accuracies"] == result.alone["accuracies"]
    assert "`accuracies[-1]` is " in result.run.view.notices["restarted"].text


def test_a_training_that_diverges_is_no_fault() -> None:
    """Rounding grows until gradients have nothing in common, on one device as well."""
    setup = "torch.manual_seed(2)\nopt = torch.optim.SGD(model.parameters(), lr=40.0)"
    run = run_both(TRAIN.replace("range(2)", "range(20)"), setup, exact="always").run
    assert "other-gradients" not in run.view.notices
    assert "then rounding has grown as large as the gradients" in text_format.verified(run.view)


def test_the_kernel_is_told_what_was_compared() -> None:
    run = run_cell(TRAIN)
    assert "all 12 optimizer steps compared: the gradients are one device's" in summary_text(run)


def test_a_step_that_one_device_does_not_take() -> None:
    torch.manual_seed(0)
    cell = TRAIN.replace("opt.step()", "opt.step() if len(list(y)) > 2 else None")
    result = compare_whole_batches(idiom("by the size", cell), exact="auto")
    result.assert_equal()


def test_shared_memory_of_the_reference_is_removed() -> None:
    cell = """
    from multiprocessing.shared_memory import SharedMemory
    memory = SharedMemory(create=True, size=1 << 16)
    """
    before = set(os.listdir("/dev/shm"))
    run = run_cell(textwrap.dedent(cell) + SLOW_ALONE, verify=0.5)
    assert run.state == "finished"
    assert {name for name in os.listdir("/dev/shm") if name.startswith("psm_")} <= before
