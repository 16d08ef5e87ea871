"""Tab completion, through IPython's completer and through a kernel."""

import os
import sys
import time
import types

import jedi
import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from jupyter_client.manager import start_new_kernel
from traitlets.config import Config

from nbmgpu.frontend.completer import names_to_pull
from nbmgpu.frontend.completion import MATCHER_ID, register, unregister
from nbmgpu.options.commands import COMMANDS
from nbmgpu.options.flags import FLAGS
from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import LAUNCHER, Started
from nbmgpu.runs.record import KernelRecord, LaunchOptions, RunRecord, StoragePaths
from nbmgpu.runs.run import Run
from nbmgpu.strategies import strategy_names
from nbmgpu.system.processes import own_process

ALL_FLAGS = [flag.name for flag in FLAGS]


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """An IPython shell with the matcher, a few names, and a cache for jedi of its own.

    Jedi completes nothing if it reads a file of its cache that another process is writing.
    """
    jedi.settings.cache_directory = tmp_path_factory.mktemp("jedi")
    main = sys.modules["__main__"]
    shell = InteractiveShell(config=Config(HistoryManager={"enabled": False}))
    shell.user_ns |= {"model": object(), "loader": [1], "_private": 1, "math": types}
    register(shell)
    yield shell
    sys.modules["__main__"] = main


def tab(shell, text):
    """Complete at ``|``; return the text before the cursor with each completion inserted."""
    offset = text.index("|")
    text = text.replace("|", "")
    with provisionalcompleter():
        found = list(shell.Completer.completions(text, offset))
    return [text[: c.start] + c.text for c in found]


def completions(shell, text):
    """Return the completions at ``|``, without the rest of the line."""
    line = text[: text.index("|")].split("\n")[-1]
    stem = line[: max(line.rfind(c) for c in " ,=") + 1]
    before = text[: text.index("|")].removesuffix(line) + stem
    return [whole.removeprefix(before) for whole in tab(shell, text)]


def test_flags_are_completed(shell):
    assert completions(shell, "%%mgpu |") == [*ALL_FLAGS, "compare", "scale"]
    assert completions(shell, "%%mgpu --str|") == ["--strategy"]
    assert tab(shell, "%%mgpu --gpus 2 --ba|") == [
        "%%mgpu --gpus 2 --batch",
        "%%mgpu --gpus 2 --background",
        "%%mgpu --gpus 2 --balance",
    ]
    assert completions(shell, "%%mgpu --str| --gpus 2\nx = 1") == ["--strategy"]


def test_used_flags_are_not_completed_again(shell):
    offered = completions(shell, "%%mgpu -s ddp --gpus=2 --no-pull |")
    taken = {"--strategy", "--gpus", "--pull", "--no-pull"}
    assert offered == [name for name in ALL_FLAGS if name not in taken]


def test_values_are_completed(shell):
    assert completions(shell, "%%mgpu --strategy |") == list(strategy_names())
    assert completions(shell, "%%mgpu -s d|") == [n for n in strategy_names() if n.startswith("d")]
    assert tab(shell, "%%mgpu --cpu --strategy=dd|") == ["%%mgpu --cpu --strategy=ddp"]
    assert completions(shell, "%%mgpu --batch p|") == ["per-rank"]
    assert completions(shell, "%%mgpu --timeout |") == ["600", "3600"]
    assert completions(shell, "%%mgpu --gpus |")[:3] == ["all", "1", "2"]
    assert completions(shell, "%%mgpu --gpus 0,|")[:1] == ["1"]
    assert completions(shell, "%%mgpu --gpus 2 |")[:2] == ["--strategy", "--cpu"]


def test_flags_of_comparisons_are_completed(shell):
    assert completions(shell, "%%mgpu com|") == ["compare"]
    assert completions(shell, "%%mgpu compare --str|") == ["--strategies"]
    assert "--pull" not in completions(shell, "%%mgpu compare |")
    assert completions(shell, "%%mgpu compare --strategies |") == list(strategy_names())
    assert "ddp" not in completions(shell, "%%mgpu compare --strategies ddp,|")
    assert completions(shell, "%%mgpu compare -s ddp,hsd|") == ["hsdp"]
    assert completions(shell, "%%mgpu scale --gpus |")[:2] == ["1", "2"]
    assert completions(shell, "%%mgpu scale --gpus 1,|")[0] == "2"
    assert completions(shell, "%%mgpu scale --strategy dd|") == ["ddp"]
    assert "%%mgpu --gpus 2 scale" not in tab(shell, "%%mgpu --gpus 2 sc|")


def test_names_of_the_cell_come_before_names_of_the_notebook(shell):
    cell = "\nfor epoch in range(3):\n    loss = step(model)\n!ls\n%time scale = 1\n"
    offered = completions(shell, "%%mgpu --pull |" + cell)
    assert offered[:2] == ["epoch", "loss"]
    assert {"model", "loader"} <= set(offered)
    assert {"math", "_private", "In", "exit"}.isdisjoint(offered)
    assert completions(shell, "%%mgpu --pull epoch,lo|" + cell) == ["loss", "loader"]
    assert completions(shell, "%%mgpu --pull=mo|" + cell) == ["model"]
    after_one = completions(shell, "%%mgpu --pull epoch |" + cell)
    assert after_one[0] == "loss"
    assert "--strategy" in after_one
    assert completions(shell, "%%mgpu --pull epoch --see|" + cell) == ["--seed"]


def test_names_of_an_incomplete_cell():
    namespace = {"model": 1, "train": test_values_are_completed}
    assert names_to_pull("for x in", namespace) == ["model"]
    assert names_to_pull('pattern = "\\d"; model = 2', namespace) == ["pattern", "model"]


def test_other_magics_can_precede(shell):
    assert completions(shell, "%%time\n%%mgpu --str|") == ["--strategy"]
    assert completions(shell, "\n%%mgpu --str|") == ["--strategy"]


@pytest.mark.parametrize(
    "text",
    [
        "%%mgpu --gpus 2\nmod|",
        "%%mgpu --gpus 2\nx = loader.ap|",
        "mod|",
        "x = 1\n%%mgpu --st|",
        "%%mgp|",
        "%mgpux --st|",
        "%%timeit --st|",
        "import o|",
    ],
)
def test_completion_elsewhere_does_not_change(shell, text):
    with_matcher = tab(shell, text)
    unregister(shell)
    try:
        assert with_matcher == tab(shell, text)
    finally:
        register(shell)


def test_python_is_completed_in_the_cell(shell):
    assert "%%mgpu --gpus 2\nloader.append" in tab(shell, "%%mgpu --gpus 2\nloader.ap|")


def test_registering_twice_keeps_one_matcher(shell):
    register(shell)
    ids = [getattr(m, "matcher_identifier", "") for m in shell.Completer.custom_matchers]
    assert ids.count(MATCHER_ID) == 1


def make_run(name, **process):
    """Create a run on one CPU rank whose launcher is ``process``."""
    kernel = own_process()
    record = RunRecord(
        id=name,
        created=time.time(),
        devices=["cpu"],
        options=LaunchOptions(strategy="ddp", batch="", seed=None, timeout=None, fresh=False),
        kernel=KernelRecord(**kernel, cwd="", sys_path=[]),
        storage=StoragePaths(bundle="", results=[]),
    )
    run = Run.create(record, "pass")
    writer = EventWriter(run.folder / "events/launcher.jsonl", LAUNCHER)
    writer.emit(Started, **(kernel | process))
    writer.close()


def test_subcommands_and_run_ids_are_completed(shell, tmp_path, monkeypatch):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    make_run("20260101-100000-aaaa", create_time=1.0)  # its launcher has ended
    make_run("20260101-110000-bbbb")
    both = ["20260101-110000-bbbb", "20260101-100000-aaaa"]
    assert completions(shell, "%mgpu |") == list(COMMANDS)
    assert completions(shell, "%mgpu s|") == ["show", "stop"]
    assert completions(shell, "x = 1\n  %mgpu at|") == ["attach"]
    assert completions(shell, "%mgpu info |") == ["--patches"]
    assert completions(shell, "%mgpu show |") == both
    assert completions(shell, "%mgpu attach 20260101-10|") == both[1:]
    assert completions(shell, "%mgpu stop |") == both[:1]


def test_through_a_kernel(tmp_path):
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}  # where jedi has its cache
    manager, client = start_new_kernel(cwd=str(tmp_path), env=environment)
    try:
        load = "import nbmgpu.frontend.completion as c; c.register(get_ipython()); model = 1"
        assert client.execute(load, reply=True, timeout=60)["content"]["status"] == "ok"

        def ask(code):
            offset = code.index("|")
            reply = client.complete(code.replace("|", ""), offset, reply=True, timeout=60)
            content = reply["content"]
            return content["matches"], content["cursor_start"] - offset, content["cursor_end"]

        assert ask("%%mgpu --str| --cpu\nx = 1") == (["--strategy"], -5, 12)
        assert ask("%%mgpu --strategy=dd|\nx = 1")[:2] == (["ddp"], -2)
        assert ask("%%mgpu --pull x1,|\nx1 = x2 = 1")[0] == ["x2", "model"]
        assert ask("%%mgpu --cpu\nmode|")[0] == ["model"]
        legacy = "get_ipython().kernel.use_experimental_completions = False"
        client.execute(legacy, reply=True, timeout=60)
        assert ask("%%mgpu --str| --cpu\nx = 1") == (["--strategy"], -5, 12)
        assert ask("%%mgpu --strategy dd|")[:2] == (["ddp"], -2)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
