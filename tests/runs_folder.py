"""A folder for the runs of a test session, away from the user's own runs.

A ``conftest.py`` that imports the fixture sets it up for all tests of its directory.
"""

import pytest


@pytest.fixture(autouse=True, scope="session")
def runs_folder(tmp_path_factory):
    """Put runs where pytest keeps its own folders; return that folder."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("runs")
        patch.setenv("NBMGPU_RUNS", str(folder))
        yield folder
