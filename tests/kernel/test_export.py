"""``%%mgpu --export``, ``%mgpu export`` and ``nbmgpu export`` in a real kernel and a terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kernels import Notebook

import nbmgpu

BIN = Path(sys.executable).parent

CELL = """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
"""

DEFINITIONS = """
import os
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
width = 4
model = nn.Linear(width, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
class Drawn(torch.utils.data.Dataset):
    def __init__(self, size):
        self.x, self.y = torch.randn(size, width), torch.randint(0, 2, (size,))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


loader = DataLoader(Drawn(20), batch_size=8, shuffle=True)
"""


def weights(script: Path) -> str:
    """Run a script by the command in its header; return the weights that it saves, as text."""
    command = re.search(r"^    (torchrun .*|python .*)$", script.read_text(), re.MULTILINE)
    assert command is not None
    first, *words = command[1].split()
    port = ["--standalone"] if first == "torchrun" else []
    subprocess.run([BIN / first, *port, *words], cwd=script.parent, check=True, timeout=120)
    return _shown(script.parent / "model.pt")


def _shown(path: Path) -> str:
    import torch

    state = torch.load(path)
    return " ".join(f"{number:.4f}" for part in state.values() for number in part.flatten())


SHOWN = "' '.join(f'{n:.4f}' for p in model.state_dict().values() for n in p.flatten())"


def run_id(notebook: Notebook) -> str:
    return notebook.run("print(nbmgpu.last_run.id)").text().strip()


def in_terminal(notebook: Notebook, path: Path) -> subprocess.CompletedProcess[str]:
    """Export the newest run of the kernel by the command line."""
    runs = notebook.run("print(nbmgpu.last_run.folder.parent)").text().strip()
    command = [str(BIN / "nbmgpu"), "export", run_id(notebook), str(path)]
    environment = {**os.environ, "NBMGPU_RUNS": runs}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_cell_is_exported_before_it_runs(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run(f"import nbmgpu\n%ls\n{DEFINITIONS}")
    path = tmp_path / "train.py"
    said = notebook.run(f"%%mgpu --gpus 2 --cpu --export {path}\n{CELL}").text()
    assert "torchrun --nproc-per-node 2 train.py" in said
    assert "%" not in path.read_text()
    notebook.run(f"%%mgpu --gpus 2 --cpu\n{CELL}")
    trained = notebook.run(f"print({SHOWN})").text().strip()
    assert weights(path) == trained


def test_a_run_that_keeps_its_start_is_exported_from_a_terminal(
    notebook: Notebook, tmp_path: Path
) -> None:
    notebook.run(f"import nbmgpu\n{DEFINITIONS}")
    notebook.run(f"%%mgpu --gpus 2 --cpu --keep-start\n{CELL}")
    trained = notebook.run(f"print({SHOWN})").text().strip()
    path = tmp_path / "train.py"
    done = in_terminal(notebook, path)
    assert done.returncode == 0, done.stderr
    assert "torchrun --nproc-per-node 2 train.py" in done.stdout
    assert weights(path) == trained


@pytest.mark.matrix
def test_with_nbmgpu_the_script_calls_it(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run(f"import nbmgpu\n{DEFINITIONS}")
    notebook.run(f"%%mgpu --gpus 2 --cpu --keep-start\n{CELL}")
    trained = notebook.run(f"print({SHOWN})").text().strip()
    path = tmp_path / "train.py"
    notebook.run(f"%mgpu export --with-nbmgpu {run_id(notebook)} {path}")
    assert "nbmgpu.run(CELL, globals(), strategy='ddp', gpus=2" in path.read_text()
    assert weights(path) == trained


def test_a_finished_run_is_exported_with_a_note(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run(f"import nbmgpu\n{DEFINITIONS}")
    notebook.run(f"%%mgpu --gpus 2 --cpu\n{CELL}")
    path = tmp_path / "train.py"
    said = notebook.run(f"%mgpu export {path} --strategy fsdp --gpus 4").text()
    assert "Note: The models start as the notebook makes them" in said
    text = path.read_text()
    assert "torchrun --nproc-per-node 4 train.py" in text
    assert "torch.manual_seed(0)" in text
    assert "fully_shard(model)" in text
    assert "model.load_state_dict" not in text
    refused = in_terminal(notebook, path)
    assert refused.returncode == 1
    assert "--keep-start" in refused.stderr


def test_a_finished_run_has_the_seed_before_it_and_pythons_own_open(
    notebook: Notebook, tmp_path: Path
) -> None:
    before, _, loader = DEFINITIONS.partition("loader = ")
    own = before.replace("torch.manual_seed(0)", "").replace("torch.randn", "torch.ones")
    own = own.replace("model = ", "torch.manual_seed(1)\nmodel = ")
    notebook.run(f"import nbmgpu\n{own}")
    notebook.run(f"loader = {loader}")
    notebook.run("torch.manual_seed(7)")
    log = tmp_path / "log.txt"
    cell = f"{CELL}\ndisplay(len(loader))\nwith open({str(log)!r}, 'a') as f:\n    f.write('end')"
    notebook.run(f"%%mgpu --gpus 2 --cpu\n{cell}")
    trained = notebook.run(f"print({SHOWN})").text().strip()
    path = tmp_path / "train.py"
    said = notebook.run(f"%mgpu export {path}").text()
    assert "writes a file on every rank" in said
    text = path.read_text()
    assert re.findall(r"manual_seed\((\d)\)", text) == ["1", "7"]
    assert f"with open({str(log)!r}, 'a')" in text
    assert "import open" not in text
    assert weights(path) == trained
    notebook.run(f"%mgpu export --with-nbmgpu {path}")
    assert weights(path) == trained


def test_a_run_that_started_again_is_exported_once_it_may_differ(
    notebook: Notebook, tmp_path: Path
) -> None:
    notebook.run(f"import nbmgpu\n{DEFINITIONS}")
    counts = "        seen += loss.item() * x.size(0)\n"
    notebook.run(f"%%mgpu --gpus 2 --cpu\nseen = 0{CELL}{counts}")
    path = tmp_path / "train.py"
    refused = notebook.send(f"%mgpu export {path}").fails("OptionError")
    assert "The run started again with whole batches" in refused
    assert "On shards of a batch, the cell counts by the size" in refused
    assert "--exact always" not in refused
    said = notebook.run(f"%mgpu export {path} --exact never").text()
    assert "`seen += loss.item() * x.size(0)` counts or reads" in said
    nowhere = tmp_path / "none" / "train.py"
    for line in (f"%mgpu export {nowhere}", f"%%mgpu --gpus 2 --cpu --export {nowhere}\n{CELL}"):
        assert f"no folder {nowhere.parent}" in notebook.send(line).fails("OptionError")


def test_what_cannot_be_exported_is_refused(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run(f"import nbmgpu\n{DEFINITIONS}")
    cell = notebook.send(f"%%mgpu --gpus 2 --cpu -s pp --export {tmp_path}/train.py\n{CELL}")
    assert "--with-nbmgpu" in cell.fails("OptionError")
    wrong = notebook.send("%mgpu export train.txt")
    assert "%mgpu export [RUN] train.py" in wrong.fails("OptionError")


def test_a_report_is_one_file_whose_text_is_escaped(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run(f"import nbmgpu\n{DEFINITIONS}")
    notebook.run(f"%%mgpu --gpus 2 --cpu\nprint('<script>alert(1)</script>')\n{CELL}")
    path = tmp_path / "report.html"
    assert "Wrote" in notebook.run(f"%mgpu export --report {path}").text()
    html = path.read_text()
    assert "&lt;script&gt;alert(1)" in html
    assert "<script" not in html
    assert not re.search(r"""(?:src|href)\s*=\s*(?!"data:text/csv;)|url\(""", html)
    assert html.count("<svg") >= 1
    for text in ("loss", "optimizer.zero_grad()", nbmgpu.__version__, "Rank 1"):
        assert text in html
