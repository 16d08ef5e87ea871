"""Runs that a test plays."""

import pytest
from staged import Stage


@pytest.fixture
def staged(monkeypatch, tmp_path):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    with Stage() as stage:
        yield stage
