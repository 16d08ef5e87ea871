"""TensorBoard has no login: another user of the machine must not reach its socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from other_user import require_root, run_as_other_user

from nbmgpu.server.tensorboard_processes import TensorBoards

pytest.importorskip("tensorboard")

CONNECT = """
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[1])
    print("connected")
except PermissionError:
    print("refused")
"""


@pytest.fixture
def boards() -> Iterator[TensorBoards]:
    boards = TensorBoards()
    yield boards
    boards.close()


def test_another_user_does_not_reach_tensorboard(boards: TensorBoards, tmp_path: Path) -> None:
    require_root()
    path = boards.socket(str(tmp_path), "/prefix")
    assert run_as_other_user(CONNECT, str(path)) == "refused"
    path.parent.chmod(0o755)  # the mode of the folder is what protects it, and of the socket
    assert run_as_other_user(CONNECT, str(path)) == "refused"
    path.chmod(0o777)
    assert run_as_other_user(CONNECT, str(path)) == "connected"
