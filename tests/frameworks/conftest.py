"""Runs of this suite leave their folders where pytest keeps its own."""

import os

import pytest


@pytest.fixture(autouse=True, scope="session")
def _runs(tmp_path_factory):
    home = os.getcwd()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBMGPU_RUNS", str(tmp_path_factory.mktemp("runs")))
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hub")))
        yield
    os.chdir(home)
