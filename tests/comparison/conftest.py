"""Runs of this suite leave their folders where pytest keeps its own."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _runs(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBMGPU_RUNS", str(tmp_path_factory.mktemp("runs")))
        yield
