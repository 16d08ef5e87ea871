"""The TypeScript client against a real server and a real run of two ranks."""

import os
import shutil
import signal
import subprocess

import pytest
from jupyter_server_process import BASE, REPOSITORY
from real_kernel import CELL, real_run

LABEXTENSION = REPOSITORY / "labextension"
VITEST = LABEXTENSION / "node_modules" / "vitest" / "vitest.mjs"


@pytest.mark.skipif(
    not (shutil.which("node") and VITEST.exists()), reason="no node, or no jlpm install"
)
def test_the_client_follows_a_run_to_its_end(runs):
    with real_run(runs, CELL) as (name, kernel):
        variables = {
            "VITE_NBMGPU_PORT": str(runs.port),
            "VITE_NBMGPU_BASE": BASE,
            "VITE_NBMGPU_TOKEN": runs.token,
            "VITE_NBMGPU_RUN": name,
        }
        done = subprocess.run(
            ["node", VITEST, "run", "src/server/real.test.ts"],
            cwd=LABEXTENSION,
            env=os.environ | variables,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "5 passed" in done.stdout
        assert kernel.wait(10) == -signal.SIGKILL  # by the client's test
    assert not (runs.runs / name).exists()
