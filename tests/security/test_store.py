"""The store of a run: what it does for ranks, and that it does nothing for another user."""

import os
import socket
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from other_user import require_root
from stranger import use_store_as_other_user

from nbmgpu.engines.local.store_server import StoreServer
from nbmgpu.rank.store.messages import Decoder, encode
from nbmgpu.rank.store.unix_store import UnixStore


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "sockets"
    folder.mkdir(mode=0o700)
    server = StoreServer(str(folder))
    server.start()
    return server


@pytest.fixture
def store(server):
    return UnixStore(server.path)


def test_a_store_does_what_torchs_does(store):
    """The same calls, also through the C++ half of the class."""
    other = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for each in (store, other, dist.PrefixStore("prefix", store)):
        each.set("key", "first")
        each.set("binary", bytes(range(256)))
        assert each.get("key") == b"first"
        assert each.get("binary") == bytes(range(256))
        assert each.multi_get(["binary", "key"]) == [bytes(range(256)), b"first"]
        each.multi_set(["a", "b"], [b"1", b"2"])
        each.append("a", b"3")
        assert each.get("a") == b"13"
        assert [each.add("sum", 2), each.add("sum", -5)] == [2, -3]
        assert each.get("sum") == b"-3"
        assert each.compare_set("key", "other", "second") == b"first"
        assert each.compare_set("key", "first", "second") == b"second"
        assert each.compare_set("new", "", "third") == b"third"
        assert each.compare_set("absent", "some", "fourth") == b"some"
        assert each.check(["key", "new"])
        assert not each.check(["key", "absent"])
        assert each.delete_key("key")
        assert not each.delete_key("key")
        assert not each.check(["key"])
        with pytest.raises(dist.DistStoreError):
            each.wait(["absent"], timedelta(milliseconds=20))
        each.set("big", b"x" * (1 << 20))
        assert each.get("big") == b"x" * (1 << 20)
    assert "prefix/a" in store.list_keys()
    assert store.num_keys() == len(store.list_keys())


def test_get_waits_for_another_thread(store):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(store.get("late"))),
        threading.Thread(target=lambda: found.append(store.multi_get(["early", "late"])[1])),
    ]
    for thread in threads:
        thread.start()
    store.set("early", b"")
    store.set("late", b"value")
    for thread in threads:
        thread.join(20)
    assert found == [b"value"] * 2


def test_a_response_never_belongs_to_an_earlier_request(store, server):
    store.set_timeout(timedelta(milliseconds=20))
    with pytest.raises(dist.DistStoreError):
        store.get("key")
    UnixStore(server.path).set("key", b"late")
    store.set("other", b"value")
    assert store.get("other") == b"value"


def test_a_request_that_is_none_ends_only_its_connection(store, server):
    store.set("key", b"value")
    for request in ([b"nothing"], [b"add", b"key", b"1"], [b"set"], []):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(20)
            raw.connect(server.path)
            raw.sendall(encode(request))
            assert raw.recv(1) == b""
    assert store.get("key") == b"value"


def test_messages_are_split_as_they_were_joined():
    messages = [[b"set", b"key", b"value" * 100], [], [b""]]
    data = b"".join(map(encode, messages))
    decoder = Decoder()
    found = [message for at in range(len(data)) for message in decoder.feed(data[at : at + 1])]
    assert found == messages
    assert list(Decoder().feed(data)) == messages


REFUSED = {"b''", "BrokenPipeError", "ConnectionResetError"}
"""What the other user sees where the socket can be reached, and the server closes it."""


def test_another_user_cannot_reach_the_socket(store, server):
    require_root()
    store.set("secret", b"value")
    assert set(use_store_as_other_user(server.path)) == {"PermissionError"}
    assert store.get("secret") == b"value"
    assert store.list_keys() == ["secret"]


@pytest.mark.parametrize("opened", ["folder", "no file"])
def test_the_server_answers_no_other_user_who_reaches_it(tmp_path, opened):
    """Not even where all folders on the way are open, or where the disk has no room for a file."""
    require_root()
    server = StoreServer(str(tmp_path) if opened == "folder" else "")
    server.start()
    store = UnixStore(server.path)
    store.set("secret", b"value")
    if opened == "folder":
        os.chmod(server.path, 0o777)
        for folder in Path(server.path).parents[:-2]:
            folder.chmod(0o755)
    answers = use_store_as_other_user(server.path)
    assert len(answers) == 5
    assert set(answers) <= REFUSED
    assert store.get("secret") == b"value"
    assert store.list_keys() == ["secret"]
