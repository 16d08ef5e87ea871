"""Heads of runs to come, which connect to a Ray cluster in advance; no cluster is needed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from several_nodes import wait

from nbmgpu.engines.ray.cluster import HeadProcess


def test_a_head_that_is_not_needed_ends_while_it_connects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads that only later: on a busy machine, Ray takes half a minute to connect."""
    connects = tmp_path / "python"
    connects.write_text("#!/bin/sh\nexec sleep 60\n")
    connects.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(connects))
    head = HeadProcess("127.0.0.1:9")
    begun = time.monotonic()
    head.end()
    wait(lambda: head._process.poll() is not None, 20)
    assert time.monotonic() - begun < 20
