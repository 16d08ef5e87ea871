"""The panel view that CONTRIBUTING.md prints, installed as another package would be."""

from __future__ import annotations

import logging

import pytest
from entry_points import example_of_contributing, installed

from nbmgpu.report.snapshot import Snapshot
from nbmgpu.report.views.external import GROUP
from nbmgpu.report.views.registry import BUILT_IN

BROKEN = """
from nbmgpu.report.views.base import PanelView

class Broken(PanelView):
    def payload(self, moment):
        raise ValueError("no payload")
"""


def test_its_payload_is_a_part_like_others(staged, tmp_path):
    example = example_of_contributing("Add a panel view")
    assert example.group == GROUP
    with installed(tmp_path, *example):
        run = staged(2)
        run.start()
        snapshot = Snapshot(run.polled())
        first = snapshot.changed()
        assert set(first) == {*BUILT_IN, "rank_losses"}
        assert first["rank_losses"] == {"losses": []}
        ((name, esm),) = [view.values() for view in first["external"]]
        assert name == "rank_losses"
        assert "export default" in esm
        run.points("loss", [1], [0.5], 0)
        run.points("loss", [1], [0.25], 1)
        run.polled()
        assert snapshot.changed()["rank_losses"] == {"losses": ["0.5", "0.25"]}
        assert not {"rank_losses", "external"} & set(snapshot.changed())  # sent once
    assert Snapshot(run.run).whole()["external"] == []


@pytest.mark.parametrize("cls", ["Broken", "Missing"])
def test_a_view_that_fails_is_logged_and_removed(staged, tmp_path, caplog, cls):
    with (
        installed(tmp_path, "broken_view", BROKEN, GROUP, {"broken": cls}),
        caplog.at_level(logging.ERROR),
    ):
        snapshot = Snapshot(staged(1).polled())
        assert set(snapshot.whole()) == set(snapshot.changed()) == set(BUILT_IN)
    (record,) = caplog.records
    assert "'broken'" in record.getMessage()
