"""The fork server imports the notebook's libraries and stays fork-safe."""

import subprocess
import sys
import textwrap

import pytest

PRELUDE = """
import os, sys, time
from pathlib import Path
from nbmgpu.engines.local.preload import Preloader, is_fork_safe, imported_libraries

preloader = Preloader()

def run_pending():
    while preloader.busy:
        if preloader.advance():
            continue
        pid, status = os.waitpid(-1, 0)
        assert preloader.is_trial(pid)
        preloader.end_trial(os.waitstatus_to_exitcode(status))
"""


@pytest.fixture
def script(tmp_path):
    """Run a script with a package ``lib`` of the given source on its path."""

    def run(library: str, source: str) -> None:
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib" / "__init__.py").write_text(textwrap.dedent(library))
        code = PRELUDE + textwrap.dedent(source)
        found = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.returncode == 0, found.stderr

    return run


def test_a_library_is_imported_with_the_environment_of_the_kernel(script):
    script(
        "import os; home = os.environ.get('LIB_HOME')",
        """
        preloader.request(["lib", "lib.none"], {"LIB_HOME": "there"})
        run_pending()
        assert sys.modules["lib"].home == "there"
        assert "LIB_HOME" not in os.environ
        """,
    )


def test_a_library_that_starts_a_thread_is_not_preloaded(script):
    script(
        "from threading import Timer; timer = Timer(9, print); timer.daemon = True; timer.start()",
        """
        preloader.request(["lib"], {})
        run_pending()
        assert "lib" not in sys.modules and is_fork_safe()
        preloader.request(["lib"], {})
        assert not preloader.busy, "a failed library is not tried again"
        """,
    )


def test_a_library_that_exits_the_process_does_not_end_the_server(script):
    script("import os; os._exit(3)", "preloader.request(['lib'], {}); run_pending()")


def test_a_reinstalled_library_is_dropped(script):
    script(
        "value = 1",
        """
        preloader.request(["lib"], {})
        run_pending()
        preloader.drop_reinstalled()
        path = Path(sys.modules["lib"].__file__)
        path.write_text("value = 22")
        os.utime(path, (1, 1))
        preloader.drop_reinstalled()
        import lib
        assert lib.value == 22
        """,
    )


def test_a_library_that_imports_user_modules_is_not_preloaded(script, tmp_path):
    (tmp_path / "mine.py").write_text("value = 1")
    script(
        "import colorsys, mine",
        """
        preloader.request(["lib"], {})
        run_pending()
        assert not {"lib", "mine"} & sys.modules.keys()
        """,
    )


def test_only_installed_libraries_of_cells_are_preloaded():
    code = (
        "import sys, pandas, nbmgpu, IPython, this\n"
        "from nbmgpu.engines.local.preload import imported_libraries\n"
        "tops = {n.partition('.')[0] for n in imported_libraries()}\n"
        "assert 'pandas' in tops and not tops & {'nbmgpu', 'IPython', 'this', 'json', '__main__'}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_first_run_does_not_import_torchs_compiler(script):
    script(
        "",
        """
        from nbmgpu.environment import torch_settings
        from nbmgpu.engines.local.fork_server import REQUIRED_MODULES, import_missing

        import_missing(REQUIRED_MODULES)
        torch_settings.apply(torch_settings.capture())
        assert "torch" in sys.modules
        assert not {"torch._dynamo", "torch._inductor"} & sys.modules.keys()
        """,
    )


def test_checking_for_a_rank_session_does_not_import_torch(script):
    script(
        "",
        """
        import nbmgpu.frontend.dispatch
        from nbmgpu import api
        from nbmgpu.kernel import in_rank

        in_rank.refuse_inside_a_rank()
        api.log(loss=1.0)
        assert "torch" not in sys.modules
        """,
    )
