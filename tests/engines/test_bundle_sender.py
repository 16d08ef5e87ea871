"""The bundle on its way to a node that does not see it: complete, and only to who knows the key."""

from __future__ import annotations

import errno
import json
import os
import secrets
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nbmgpu.engines.ray.bundle_sender import BundleSender
from nbmgpu.engines.ray.node_actor import CHALLENGE, NodeActor
from nbmgpu.serialization import container

SIZE = 9 * 2**20 + 5
"""Bytes: more than are received at once."""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Return an incomplete bundle."""
    path = tmp_path / "bundle"
    path.write_bytes(bytes(len(container.MAGIC)) + os.urandom(SIZE))
    return path


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[NodeActor, Path]]:
    """Return the actor of a node, and where it expects the bundle."""
    actor = NodeActor()
    record = json.dumps({"devices": [], "kernel": {}, "storage": {}}).encode()
    folder = actor.copy_folder("run", {"run.json": record, "bundle": b""}, {}, "")
    launcher = tmp_path / "launcher"
    launcher.write_text('#!/bin/sh\ntest "$1" = -c || exec sleep 60\n')
    launcher.chmod(0o700)
    actor.start(folder, str(launcher), [], {})
    yield actor, Path(folder) / "bundle"
    actor.end()
    actor._output.close()  # what ends with the process of an actor
    assert actor._copy is not None
    with actor._copy._remover as remover:
        remover.kill()


def complete(bundle: Path) -> None:
    with bundle.open("r+b") as file:
        file.write(container.MAGIC)


def test_a_node_gets_it_once_it_is_complete(bundle: Path, node: tuple[NodeActor, Path]) -> None:
    actor, copy = node
    sender = BundleSender(str(bundle))
    actor.fetch_bundle("127.0.0.1", sender.port, sender.key)
    time.sleep(0.1)
    assert not copy.read_bytes()
    complete(bundle)
    sender.wait()
    assert sender.error == ""
    assert container.is_complete(str(copy))
    assert copy.read_bytes() == bundle.read_bytes()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", sender.port))


@pytest.mark.parametrize("refuses", ["connection", "file", "all"])
def test_a_system_that_does_not_splice_copies(
    refuses: str,
    bundle: Path,
    node: tuple[NodeActor, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as one with a file system that cannot, or macOS."""
    real = os.splice

    def splice(source: int, target: int, count: int) -> int:
        is_file = stat.S_ISREG(os.fstat(target).st_mode)
        if is_file == (refuses == "file"):
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(source, target, count)

    if refuses == "all":
        monkeypatch.delattr(os, "splice")
    else:
        monkeypatch.setattr(os, "splice", splice)
    complete(bundle)
    actor, copy = node
    sender = BundleSender(str(bundle))
    actor.fetch_bundle("127.0.0.1", sender.port, sender.key)
    sender.wait()
    assert not sender.error
    assert copy.read_bytes() == bundle.read_bytes()


def test_others_get_nothing_and_the_node_still_does(
    bundle: Path, node: tuple[NodeActor, Path]
) -> None:
    actor, copy = node
    complete(bundle)
    sender = BundleSender(str(bundle))
    with socket.create_connection(("127.0.0.1", sender.port)) as other:
        challenge = other.recv(CHALLENGE, socket.MSG_WAITALL)
        other.sendall(secrets.token_bytes(CHALLENGE) + challenge)
        assert other.recv(1) == b""
    actor.fetch_bundle("127.0.0.1", sender.port, sender.key)
    sender.wait()
    assert copy.read_bytes() == bundle.read_bytes()


def test_a_node_takes_nothing_from_who_is_not_the_head(
    bundle: Path, node: tuple[NodeActor, Path]
) -> None:
    actor, copy = node
    with socket.create_server(("127.0.0.1", 0)) as server:
        actor.fetch_bundle("127.0.0.1", server.getsockname()[1], secrets.token_bytes(CHALLENGE))
        connection, _ = server.accept()
        with connection:
            challenge = secrets.token_bytes(CHALLENGE)
            connection.sendall(challenge)
            connection.recv(2 * CHALLENGE, socket.MSG_WAITALL)
            with suppress(OSError):  # it has closed the connection
                connection.sendall(challenge + SIZE.to_bytes(8, "little") + bundle.read_bytes())
            with pytest.raises(OSError, match="is not the head of the run"):
                actor.poll(20)
    assert not copy.read_bytes()


def test_a_transfer_that_breaks_off_is_an_error_and_leaves_no_complete_bundle(
    bundle: Path, node: tuple[NodeActor, Path]
) -> None:
    actor, copy = node
    complete(bundle)
    sender = BundleSender(str(bundle))
    relay = socket.create_server(("127.0.0.1", 0))
    actor.fetch_bundle("127.0.0.1", relay.getsockname()[1], sender.key)
    there, _ = relay.accept()
    here = socket.create_connection(("127.0.0.1", sender.port))
    there.sendall(here.recv(CHALLENGE, socket.MSG_WAITALL))
    here.sendall(there.recv(2 * CHALLENGE, socket.MSG_WAITALL))
    there.sendall(here.recv(2**20, socket.MSG_WAITALL))
    for each in (there, here, relay):
        each.close()
    with pytest.raises(OSError, match="the connection to the head has ended"):
        actor.poll(20)
    sender.wait()
    assert sender.error
    assert not container.is_complete(str(copy))


def test_closing_ends_the_wait_for_a_bundle(bundle: Path) -> None:
    sender = BundleSender(str(bundle))
    waiting = threading.Thread(target=sender.wait)
    waiting.start()
    sender.close()
    waiting.join(20)
    assert not waiting.is_alive()
    assert sender.error == ""
