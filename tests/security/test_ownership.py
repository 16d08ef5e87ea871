"""Nothing is unpickled that another user may have written."""

from __future__ import annotations

import ast
import base64
import json
import os
import pickle
import timeit
from pathlib import Path

import pytest
from other_user import USER, require_root
from staged import Stage

import nbmgpu
from nbmgpu.errors import OwnershipError, RankError
from nbmgpu.rank.checkpoints.resume import Resume
from nbmgpu.runs.checkpoint import (
    DESCRIPTION,
    RANDOM,
    STATES,
    VALUES,
    Checkpoint,
    step_folder,
)
from nbmgpu.runs.checkpoint_description import CheckpointDescription, LoopPosition
from nbmgpu.runs.events import Failure
from nbmgpu.runs.failure import exception_of
from nbmgpu.runs.folder import CELLS_FILE, START_FILE, post_mortem_path
from nbmgpu.runs.post_mortem import Frame, PostMortem, load_post_mortem
from nbmgpu.runs.undo_log import UndoLog, undo
from nbmgpu.serialization import container
from nbmgpu.system.ownership import require_own, require_own_folder

PACKAGE = Path(nbmgpu.__file__).parent
CELL = "x = 1\n"


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture(autouse=True)
def _root():
    require_root()


@pytest.fixture
def stage(monkeypatch, tmp_path):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path / "runs"))
    with Stage() as stage:
        yield stage


@pytest.fixture
def proof(tmp_path):
    """A file that exists once a payload has been unpickled."""
    return tmp_path / "unpickled"


@pytest.fixture
def file(tmp_path):
    """A file that all users can reach."""
    folder = tmp_path / "open"
    folder.mkdir()
    open_folders(folder)
    file = folder / "file"
    file.write_bytes(b"")
    file.chmod(0o644)
    return file


def open_folders(folder):
    """Let all users enter a folder and those around it."""
    for each in (folder, *folder.parents[:-2]):
        each.chmod(0o755)


def give_away(*paths):
    for path in paths:
        os.chown(path, USER, USER)


def test_ones_own_files_are_accepted(file):
    require_own(file)
    require_own_folder(file.parent)


def test_files_of_another_user_are_refused(file):
    give_away(file)
    with pytest.raises(OwnershipError, match=r"another user, with the id 12345\.\n.*\nTry: "):
        require_own(file)
    with pytest.raises(OwnershipError):
        require_own_folder(file.parent)


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_files_that_others_may_write_to_are_refused(file, mode):
    file.chmod(mode)
    with pytest.raises(
        OwnershipError, match=r"Other users may write to .*\n.*\nTry: chmod -R go-w"
    ):
        require_own(file)
    file.parent.chmod(0o700)
    require_own(file)  # nobody else reaches it


def test_a_link_to_a_file_of_another_user_is_refused(file):
    link = file.with_name("link")
    link.symlink_to(file)
    require_own(link)
    give_away(file)
    with pytest.raises(OwnershipError):
        require_own(link)


def test_a_link_out_of_a_closed_folder_is_no_protection(file, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "link").symlink_to(file)
    file.chmod(0o666)
    with pytest.raises(OwnershipError):
        require_own(closed / "link")


def test_another_users_bundle_or_result_is_not_read(file):
    container.write(str(file), pickle.dumps(1), b"", [], [])
    assert bytes(container.read(str(file)).stream) == pickle.dumps(1)
    give_away(file)
    with pytest.raises(OwnershipError):
        container.read(str(file))


@pytest.fixture
def checkpoint(stage, proof):
    """A checkpoint whose pickles are payloads."""
    run = stage(1, cell=CELL).run
    folder = step_folder(run.folder, 5)
    folder.mkdir(parents=True)
    position = LoopPosition(None, 0, [])
    description = CheckpointDescription(5, 5, {}, 40, 1, [position])
    (folder / DESCRIPTION).write_text(description.to_json())
    for name in (STATES, VALUES, RANDOM):
        (folder / name).write_bytes(pickle.dumps(Payload(proof)))
    return run, Checkpoint(folder)


def trainer_states(run, checkpoint):
    """Read the states of a checkpoint that Lightning has written, in a folder of its own."""
    path = checkpoint.folder / DESCRIPTION
    path.write_text(json.dumps(json.loads(path.read_text()) | {"trainer": "lightning"}))
    return checkpoint.states


READERS = {
    "states of a Trainer": trainer_states,
    "run.checkpoint": lambda run, checkpoint: run.checkpoint(-1),
    "states": lambda run, checkpoint: checkpoint.states,
    "tensors": lambda run, checkpoint: checkpoint.map_tensors(1),
    "rank": lambda run, checkpoint: Resume(checkpoint),
    "--resume PATH": lambda run, checkpoint: nbmgpu.run(
        CELL, {}, gpus=2, cpu=True, resume=str(checkpoint.folder)
    ),
    "--resume RUN": lambda run, checkpoint: nbmgpu.run(CELL, {}, gpus=2, cpu=True, resume=run.id),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("given", ["folder", "file", "writable"])
def test_another_users_checkpoint_is_refused(checkpoint, proof, reader, given):
    run, found = checkpoint
    if given == "writable":
        open_folders(found.folder)
        (found.folder / STATES).chmod(0o666)
    else:
        give_away(found.folder if given == "folder" else found.folder / RANDOM)
    with pytest.raises(OwnershipError, match="Reading it may run any code"):
        READERS[reader](run, found)
    assert not proof.exists()
    assert len(list(run.folder.parent.iterdir())) == 1  # no other run has been started


def test_ones_own_checkpoint_is_read(checkpoint, proof):
    run, found = checkpoint
    assert run.checkpoint(-1) == found
    Resume(found)
    assert proof.exists()  # so the tests above would have noticed it


def failed_run(stage, proof):
    staged = stage(1)
    staged.start()
    pickled = base64.b64encode(pickle.dumps(Payload(proof))).decode()
    staged.ranks[0].emit(
        Failure, type="ValueError", message="text", line=1, traceback=[], pickled=pickled
    )
    staged.end("failed")
    staged.run.refresh()
    return staged.run


def test_an_exception_in_another_users_events_is_not_unpickled(stage, proof):
    run = failed_run(stage, proof)
    give_away(run.events_path("rank-0"))
    error = exception_of(run)
    assert isinstance(error, RankError)
    assert "ValueError: text" in str(error)
    assert not proof.exists()


def test_an_exception_in_ones_own_events_is_unpickled(stage, proof):
    exception_of(failed_run(stage, proof))
    assert proof.exists()


@pytest.mark.parametrize("given_away", [False, True])
def test_the_frames_of_an_exception_are_read_from_ones_own_files_only(stage, proof, given_away):
    run = failed_run(stage, proof)
    path = post_mortem_path(run.folder, 0)
    path.parent.mkdir()
    frame = Frame("<cell>", "<module>", "__main__", 1, {"x": pickle.dumps(Payload(proof))})
    path.write_bytes(pickle.dumps(PostMortem((frame,), {})))
    if given_away:
        give_away(path)
        with pytest.raises(OwnershipError):
            load_post_mortem(run)
    else:
        load_post_mortem(run)[1].frames[0].values()
    assert proof.exists() != given_away


def test_the_start_of_another_users_run_is_not_opened(stage, tmp_path):
    staged = stage()
    staged.start()
    staged.end("finished")
    start = staged.run.folder / START_FILE
    start.write_bytes(b"not even a bundle")
    (staged.run.folder / CELLS_FILE).write_text("[]")
    give_away(start)
    with pytest.raises(OwnershipError):
        nbmgpu.export(staged.run, tmp_path / "train.py")


def test_another_users_log_restores_nothing(tmp_path):
    changed = tmp_path / "changed"
    changed.write_text("before")
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    UndoLog(run_folder).record(str(changed))
    changed.write_text("after")
    give_away(run_folder)
    with pytest.raises(OwnershipError):
        undo(run_folder)
    assert changed.read_text() == "after"


def test_a_run_is_not_put_into_a_folder_that_another_user_has_made(stage, monkeypatch):
    root = Path(os.environ["NBMGPU_RUNS"])
    (root / "20260101-120000-000aa").mkdir(parents=True)
    give_away(root / "20260101-120000-000aa")
    with pytest.raises(OwnershipError):
        stage(1, id="20260101-120000-000aa")
    assert list((root / "20260101-120000-000aa").iterdir()) == []


UNPICKLED = {
    "serialization/address_space.py": "the table of a container, which container.read has checked",
    "serialization/flat_encoding.py": "part of the stream of such a container",
    "serialization/pickler.py": "the stream of such a container",
    "runs/checkpoint_tensors.py": "tensors alone, in files of a checkpoint, which has been checked",
    "runs/checkpoint_state.py": "bytes of a checkpoint, which has been checked",
    "runs/trainer_checkpoint.py": "files of a checkpoint, which has been checked",
    "rank/checkpoints/trainers.py": "bytes of a checkpoint, which is checked",
    "runs/post_mortem.py": "frames of an exception, of which the file is checked",
    "runs/failure.py": "an event, of which the file is checked",
    "rank/checkpoints/resume.py": "bytes of a checkpoint, which is checked",
    "rank/store/broadcast.py": "from another rank, through the store",
    "rank/reporting/failures.py": "what this process has pickled",
    "rank/hang_reports.py": "what this process has pickled",
    "trackers/mlflow.py": "runs in the header of such a container",
    "strategies/sharded_state.py": "what ranks have sent by a collective",
}
"""All places that unpickle, and what."""


def test_all_places_that_unpickle_are_listed():
    """A new one needs a check, and a line above."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                name = f"{node.value.id}.{node.attr}"
                if name in {
                    "pickle.load", "pickle.loads", "pickle.Unpickler", "cloudpickle.load",
                    "cloudpickle.loads", "torch.load", "marshal.loads", "joblib.load",
                }:  # fmt: skip
                    found.add(str(path.relative_to(PACKAGE)))
    assert found == UNPICKLED.keys()


def test_a_check_is_cheap(file):
    assert min(timeit.repeat(lambda: require_own(file), number=100, repeat=5)) / 100 < 1e-3


def test_a_log_that_was_not_written_to_its_end_restores_nothing(tmp_path):
    changed = tmp_path / "changed"
    changed.write_text("before")
    UndoLog(tmp_path).record(str(changed))
    changed.write_text("after")
    (log,) = (tmp_path / "undo").glob("*.jsonl")
    log.write_text(log.read_text() + '{"time": 1')
    with pytest.raises(OSError, match="not written to its end"):
        undo(tmp_path)
    assert changed.read_text() == "after"
