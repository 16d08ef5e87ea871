"""The store of a run: what it does for ranks, and that it does nothing for another user."""

import contextlib
import os
import socket
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from other_user import require_root
from stranger import use_store_as_other_user

from nbmgpu.engines.store_server import StoreServer
from nbmgpu.rank.store import store_address
from nbmgpu.rank.store.messages import Decoder, encode, receive
from nbmgpu.rank.store.run_store import RunStore

KEY = bytes(range(32))


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "sockets"
    folder.mkdir(mode=0o700)
    server = StoreServer.on_unix_socket(str(folder))
    server.start()
    return server


@pytest.fixture
def port_server(monkeypatch):
    server = StoreServer.on_port("127.0.0.1", KEY)
    server.start()
    monkeypatch.setattr(store_address, "_key", KEY)
    return server


@pytest.fixture
def store(server):
    return RunStore(server.address)


def test_a_store_does_what_torchs_does(store, port_server):
    """The same calls, also through the C++ half of the class."""
    other = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for each in (store, other, RunStore(port_server.address), dist.PrefixStore("prefix", store)):
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
    RunStore(server.address).set("key", b"late")
    store.set("other", b"value")
    assert store.get("other") == b"value"


def test_a_request_that_is_none_ends_only_its_connection(store, server):
    store.set("key", b"value")
    for request in ([b"nothing"], [b"add", b"key", b"1"], [b"set"], []):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(20)
            raw.connect(server.address.path)
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
    assert set(use_store_as_other_user(server.address.path)) == {"PermissionError"}
    assert store.get("secret") == b"value"
    assert store.list_keys() == ["secret"]


@pytest.mark.parametrize("opened", ["folder", "no file"])
def test_the_server_answers_no_other_user_who_reaches_it(tmp_path, opened):
    """Not even where all folders on the way are open, or where the disk has no room for a file."""
    require_root()
    server = StoreServer.on_unix_socket(str(tmp_path) if opened == "folder" else "")
    server.start()
    store = RunStore(server.address)
    store.set("secret", b"value")
    if opened == "folder":
        os.chmod(server.address.path, 0o777)
        for folder in Path(server.address.path).parents[:-2]:
            folder.chmod(0o755)
    answers = use_store_as_other_user(server.address.path)
    assert len(answers) == 5
    assert set(answers) <= REFUSED
    assert store.get("secret") == b"value"
    assert store.list_keys() == ["secret"]


@pytest.mark.parametrize("reply", ["nothing", "another key", "a replay", "a request", "megabytes"])
def test_a_port_answers_only_who_knows_the_key(port_server, reply):
    host, port = port_server.address.socket_address()
    with socket.create_connection((host, port)) as raw, socket.create_connection((host, port)) as b:
        raw.settimeout(5)
        (challenge,) = receive(raw)
        (other,) = receive(b)
        assert challenge != other
        sent = {
            "nothing": b"",
            "another key": encode([store_address.answer(b"another", challenge)]),
            "a replay": encode([store_address.answer(KEY, other)]),
            "a request": b"",
            "megabytes": (1 << 20).to_bytes(4, "little") + bytes(1 << 20),
        }[reply]
        with contextlib.suppress(ConnectionError):
            raw.sendall(sent + encode([b"set", b"key", b"stolen"]))
        with contextlib.suppress(ConnectionError):
            assert raw.recv(1) == b""
    assert RunStore(port_server.address).list_keys() == []


def test_a_rank_with_another_key_is_told_so(port_server, monkeypatch):
    monkeypatch.setattr(store_address, "_key", b"another")
    with pytest.raises(dist.DistNetworkError, match=r"has ended|reset"):
        RunStore(port_server.address).list_keys()


def test_the_key_is_not_in_the_environment_of_the_cell(monkeypatch):
    monkeypatch.setattr(store_address, "_key", b"")
    monkeypatch.setenv(store_address.KEY_VARIABLE, KEY.hex())
    assert store_address.store_key() == KEY
    assert store_address.KEY_VARIABLE not in os.environ
    assert store_address.store_key() == KEY
