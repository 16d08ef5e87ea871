"""Ranks see the kernel's current modules, environment and data, and nothing of earlier runs.

The fork server imports libraries in advance, and the bundle's memory is reused by the next run;
neither may have an effect on what ranks see.
"""

from __future__ import annotations

import psutil
import pytest
from kernels import Notebook, wait_for

MAGIC = "%%mgpu --gpus 2 --cpu\n"
WAIT_FOR_FILE = (
    "while not os.path.exists('background-run-may-end'): time.sleep(0.05)\nwent = 'well'"
)


def on_ranks(notebook: Notebook, expression: str) -> object:
    """Return the value of ``expression``, which must be equal on both ranks."""
    notebook.run(f"{MAGIC}found = {expression}\nfound")
    values = "[found] + [v['found'] for r, v in nbmgpu.last_run.results.items() if r]"
    first, second = notebook.value(values)
    assert first == second
    return first


def test_an_edited_module_is_reloaded(notebook: Notebook) -> None:
    work = notebook.folder / "work"
    (work / "recipe.py").write_text("def scale(): return 1\n")
    notebook.run("import importlib, recipe\nfrom recipe import scale")
    assert on_ranks(notebook, "(recipe.scale(), scale())") == (1, 1)
    (work / "recipe.py").write_text("def scale(): return 'edited'\n")
    notebook.run("importlib.reload(recipe)\nfrom recipe import scale")
    assert on_ranks(notebook, "(recipe.scale(), scale())") == ("edited", "edited")


def test_a_quickly_edited_module_matches_the_kernels(notebook: Notebook) -> None:
    path = notebook.folder / "work" / "quick.py"
    for number in (10, 11, 12):  # same size and mtime: Python itself may miss the change
        path.write_text(f"number = {number}\n")
        notebook.run("import importlib, quick; importlib.reload(quick)")
        assert on_ranks(notebook, "quick.number") == notebook.value("quick.number")


def test_ranks_have_the_kernels_environment_folder_and_path(notebook: Notebook) -> None:
    notebook.run(
        "os.environ['RECIPE'] = 'first'\n"
        "os.makedirs('elsewhere', exist_ok=True); work = os.getcwd(); os.chdir('elsewhere')\n"
        "sys.path.insert(0, work + '/mine')"
    )
    expression = "(os.environ.get('RECIPE'), os.path.basename(os.getcwd()), sys.path[0][-5:])"
    assert on_ranks(notebook, expression) == ("first", "elsewhere", "/mine")
    notebook.run("os.environ['RECIPE'] = 'second'; os.chdir(work); del sys.path[0]")
    first, folder, path = on_ranks(notebook, expression)  # type: ignore[misc]
    assert (first, folder) == ("second", "work")
    assert path != "/mine"
    notebook.run("del os.environ['RECIPE']")
    assert on_ranks(notebook, "os.environ.get('RECIPE')") is None


def test_c_libraries_read_the_current_environment(notebook: Notebook) -> None:
    hours = "time.localtime(0).tm_gmtoff // 3600"
    try:
        for zone, offset in (("XYZ-5", 5), ("XYZ+7", -7)):
            notebook.run(f"os.environ['TZ'] = {zone!r}; time.tzset()")
            assert on_ranks(notebook, hours) == offset
    finally:
        notebook.run("del os.environ['TZ']; time.tzset()")
    assert on_ranks(notebook, hours) == notebook.value(hours)


def test_ranks_have_the_current_limits_umask_and_affinity(notebook: Notebook) -> None:
    notebook.run(
        "import resource\n"
        "files, masks, cores = resource.getrlimit(resource.RLIMIT_NOFILE), 0o022, "
        "os.sched_getaffinity(0)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (files[0] - 1, files[1]))\n"
        "os.umask(0o077); os.sched_setaffinity(0, {min(cores)})"
    )
    expression = (
        "(__import__('resource').getrlimit(7), oct(os.umask(0o077)), len(os.sched_getaffinity(0)))"
    )
    try:
        assert on_ranks(notebook, expression) == notebook.value(expression)
        assert on_ranks(notebook, expression)[1:] == ("0o77", 1)  # type: ignore[index]
    finally:
        notebook.run(
            "resource.setrlimit(resource.RLIMIT_NOFILE, files)\n"
            "os.umask(masks); os.sched_setaffinity(0, cores)"
        )
    assert on_ranks(notebook, expression) == notebook.value(expression)


def test_a_file_that_shadows_a_standard_module_is_not_imported(notebook: Notebook) -> None:
    path = notebook.folder / "work" / "random.py"
    path.write_text("raise SystemExit('imported instead of the standard module')\n")
    try:
        notebook.run("from nbmgpu.engines.local import client; client.fork_server_client().close()")
        for options in ("", "--fresh "):
            cell = f"%%mgpu --gpus 2 --cpu {options}\nimport random\nrandom.choice([1])"
            assert notebook.run(cell).seen == ["1"]
    finally:
        path.unlink()


def test_sets_of_strings_have_the_same_order_in_all_ranks(notebook: Notebook) -> None:
    notebook.run(
        "%%mgpu --gpus 2 --cpu --fresh\nfound = list({f'class {n}' for n in range(12)})\n"
        "seed = os.environ.get('PYTHONHASHSEED')"
    )
    first, second = notebook.value("[found, nbmgpu.last_run.results[1]['found']]")
    assert first == second
    assert notebook.value("seed") is None


def test_variables_read_by_torchs_import_are_current(notebook: Notebook) -> None:
    level = "str(dist.get_debug_level())"
    before = notebook.fork_server()
    assert on_ranks(notebook, level) == "DebugLevel.OFF"
    notebook.run(f'%%mgpu --gpus 2 --cpu --background\nprint("ready")\n{WAIT_FOR_FILE}')
    notebook.run("os.environ['TORCH_DISTRIBUTED_DEBUG'] = 'DETAIL'")
    try:
        assert on_ranks(notebook, level) == "DebugLevel.DETAIL"
        assert before.is_running()  # until its run has ended
        notebook.run("open('background-run-may-end', 'w').close()")
        wait_for(lambda: not before.is_running() or before.status() == psutil.STATUS_ZOMBIE, 10)
        wait_for(lambda: notebook.value("'went' in globals()"), 10)
        assert notebook.value("went") == "well"
    finally:
        notebook.run(
            "del os.environ['TORCH_DISTRIBUTED_DEBUG']; os.remove('background-run-may-end')"
        )
    assert on_ranks(notebook, level) == "DebugLevel.OFF"


def test_a_module_of_the_same_name_is_imported_from_the_current_path(
    notebook: Notebook,
) -> None:
    work = notebook.folder / "work"
    for folder in ("first", "second"):
        (work / folder / "pack").mkdir(parents=True)
        (work / folder / "pack" / "__init__.py").write_text("")
        (work / folder / "pack" / "part.py").write_text(f"source = {folder!r}\n")
    again = "import sys; [sys.modules.pop(n) for n in list(sys.modules) if n.startswith('pack')]"
    for folder in ("first", "second", "first"):
        notebook.run(
            f"sys.path.insert(0, os.path.abspath({folder!r}))\n{again}\nfrom pack import part"
        )
        assert on_ranks(notebook, "part.source") == folder
    notebook.run("del sys.path[:3]")


CHANGES = {
    "a tensor": ("torch.zeros(2**20)", "data[12345] = 7", "float(data.sum())"),
    "a view of a tensor": ("torch.zeros(2**20)[::2]", "data[12345] = 7", "float(data.sum())"),
    "a tensor through .data": (
        "torch.zeros(2**20)", "data.data[-1] = 7", "float(data.sum())"),
    "a tensor through NumPy": ("torch.zeros(2**20)", "data.numpy()[0] = 7", "float(data.sum())"),
    "a tensor through an older view": (
        "torch.zeros(2**20); window = data.view(1024, 1024)[3, 5:6]", "window += 7",
        "float(data.sum())"),
    "an array through an older view": (
        "np.zeros(2**20); window = data.reshape(1024, 1024)[7]", "window[3] = 7",
        "float(data.sum())"),
    "an array shared with a tensor": (
        "np.zeros(2**20); same = torch.from_numpy(data)", "same[9] = 7", "float(data.sum())"),
    "an array shared with a frame": (
        "pd.DataFrame(base := np.zeros((2**20, 1)), columns=['a'], copy=False)", "base[5] = 7",
        "float(data.a.sum())"),
    "an array": ("np.zeros(2**20)", "data[12345] = 7", "float(data.sum())"),
    "a frame": (
        "pd.DataFrame({'a': np.zeros(2**20)})", "data.iloc[5, 0] = 7", "float(data.a.sum())"),
    "a frame with a new column": (
        "pd.DataFrame({'a': np.zeros(2**20)})", "data['b'] = 1.0 * (data.index == 3) * 7",
        "float(data.sum().sum())"),
    "a list in a dict": ("{'a': [0] * 1000}", "data['a'][500] = 7", "sum(data['a'])"),
    "a model": ("nn.Linear(1024, 1024)", "nn.init.constant_(data.weight, 7 / 2**20)",
                "round(float(data.weight.sum()))"),
}  # fmt: skip


@pytest.mark.parametrize(("value", "change", "expression"), CHANGES.values(), ids=CHANGES)
def test_changed_data_is_sent_again(
    notebook: Notebook, value: str, change: str, expression: str
) -> None:
    notebook.run(f"import numpy as np, pandas as pd\ndata = {value}")
    on_ranks(notebook, expression)
    on_ranks(notebook, expression)  # unchanged: nothing is written
    notebook.run(change)
    assert on_ranks(notebook, expression) == 7


@pytest.mark.parametrize("end", ["pass", "1 / 0", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_data_changed_by_a_run_matches_the_notebook(notebook: Notebook, end: str) -> None:
    notebook.run("data = torch.zeros(2**20)")
    on_ranks(notebook, "float(data.sum())")
    notebook.send(f"{MAGIC}data[5] = 7\n{end}").wait()
    notebook.wait_for_ranks_to_exit(10)
    assert on_ranks(notebook, "float(data[5])") == notebook.value("float(data[5])")
    notebook.run("data[6] = 8")
    assert on_ranks(notebook, "float(data[6])") == 8


def test_a_restarted_fork_server_has_the_current_state(notebook: Notebook) -> None:
    (notebook.folder / "work" / "late.py").write_text("number = 1\n")
    notebook.run("import late; data = torch.zeros(2**20)")
    expression = "(late.number, float(data.sum()), os.environ.get('LATE'))"
    assert on_ranks(notebook, expression) == (1, 0.0, None)
    server = notebook.fork_server()
    server.kill()
    wait_for(lambda: server.status() == psutil.STATUS_ZOMBIE, 5)
    (notebook.folder / "work" / "late.py").write_text("number = 22\n")
    notebook.run(
        "import importlib; importlib.reload(late); data.view(1024, 1024)[3, 5] = 7\n"
        "os.environ['LATE'] = 'yes'"
    )
    assert on_ranks(notebook, expression) == (22, 7.0, "yes")
    assert notebook.fork_server().pid != server.pid


def test_ranks_keep_no_state_of_earlier_runs(notebook: Notebook) -> None:
    notebook.run(
        f"{MAGIC}import builtins, decimal, random\n"
        "builtins.leftover = 1; decimal.leftover = 1; os.environ['LEFTOVER'] = '1'\n"
        "torch.set_default_dtype(torch.float64); sys.path.append('/leftover')"
    )
    # What the notebook has from there as well, it sets back.
    notebook.run("torch.set_default_dtype(torch.float32); del os.environ['LEFTOVER']")
    assert on_ranks(
        notebook,
        "(hasattr(__import__('builtins'), 'leftover'), hasattr(__import__('decimal'), 'leftover'),"
        " os.environ.get('LEFTOVER'), str(torch.get_default_dtype()), '/leftover' in sys.path)",
    ) == (False, False, None, "torch.float32", False)
