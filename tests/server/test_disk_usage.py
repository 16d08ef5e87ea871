"""What all runs take on the disk: the route, and what is measured again."""

import os
import shutil

import pytest

import nbmgpu.server.disk_usage as disk_usage_module
from nbmgpu.runs.folder_size import FolderSize, measure
from nbmgpu.server.disk_usage import DiskUsageReader

MEBIBYTE = 1 << 20


def played(stage, number):
    """Create a finished run with a checkpoint of one MiB."""
    staged = stage(2, id=f"20260101-00000{number}-abc")
    staged.start()
    staged.finish()
    staged.close()
    checkpoint = staged.run.folder / "checkpoints" / "step-1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_bytes(b"x" * MEBIBYTE)
    return staged.run.folder


@pytest.fixture
def measured(monkeypatch):
    """Names of the folders that are measured; nothing is reused for other clients."""
    names = []

    def counted(folder):
        names.append(folder.name)
        return measure(folder)

    monkeypatch.setattr(disk_usage_module, "measure", counted)
    monkeypatch.setattr(disk_usage_module, "CACHE_SECONDS", 0)
    return names


def test_the_route_answers_with_the_number_and_the_size_of_all_runs(runs, stage):
    assert runs.request("disk").json == {"runs": 0, "nbytes": 0}
    played(stage, 1)
    played(stage, 2)

    def usage():
        return runs.request("disk").json

    found = usage()
    while found["runs"] != 2:  # the answer may be a second old
        found = usage()
    assert 2 * MEBIBYTE <= found["nbytes"] < 2.2 * MEBIBYTE


def test_only_runs_that_changed_are_measured_again(runs, stage, measured):
    first, second = played(stage, 1), played(stage, 2)
    reader = DiskUsageReader()
    before = reader.read()
    assert (before.runs, sorted(measured)) == (2, [first.name, second.name])
    measured.clear()
    assert reader.read() == before
    assert measured == []
    (first / "checkpoints" / "step-1" / "optimizer").write_bytes(b"x" * MEBIBYTE)
    assert reader.read().nbytes == before.nbytes + MEBIBYTE
    assert measured == [first.name]
    shutil.rmtree(second)
    assert reader.read().runs == 1


def test_a_run_whose_files_grow_is_measured_again(runs, stage, measured):
    staged = stage(1, id="20260101-000001-abc")
    staged.start()
    staged.log(0, "begun\n")
    reader = DiskUsageReader()
    before = reader.read()
    staged.log(0, "x" * MEBIBYTE)
    staged.heartbeat(0, 1)
    assert reader.read().nbytes >= before.nbytes + MEBIBYTE


def test_links_and_damaged_folders_are_not_counted(runs, stage, tmp_path, measured):
    whole = played(stage, 1)
    (tmp_path / "large").write_bytes(b"x" * MEBIBYTE)
    (whole / "sockets").symlink_to(tmp_path)
    (runs.runs / "20260101-000002-abc").symlink_to(tmp_path)
    (runs.runs / "20260101-000003-abc").mkdir()
    usage = DiskUsageReader().read()
    assert usage.runs == 1
    assert usage.nbytes < 1.1 * MEBIBYTE


def test_sizes_are_those_on_the_disk(tmp_path):
    with (tmp_path / "sparse").open("wb") as file:
        os.truncate(file.fileno(), 100 * MEBIBYTE)
    size = measure(tmp_path)
    assert size.nbytes < MEBIBYTE
    assert size.is_current()
    (tmp_path / "sparse").unlink()
    assert not size.is_current()
    assert not FolderSize(0, {str(tmp_path / "gone"): 1}).is_current()
