"""What another user of the machine reaches of a run: no socket, no store, no file."""

import ipaddress
import os
import re
import socket
from pathlib import Path

import pytest
from other_user import readable_by_others, run_as_other_user
from stranger import use_store_as_other_user

from nbmgpu.rank.store.run_store import RunStore
from nbmgpu.rank.store.store_address import StoreAddress

CONNECT = """
for path in sys.argv[1:]:
    try:
        socket.socket(socket.AF_UNIX).connect("\\0" + path[1:] if path[0] == "@" else path)
        print("connected to", path)
    except PermissionError:
        pass
"""


def test_all_listening_ports_are_on_the_loopback_interface(waiting):
    listening = [
        (process.name(), connection.laddr)
        for process in waiting.processes
        for connection in process.net_connections("inet")
        if connection.status == "LISTEN" or not connection.raddr
    ]
    assert len(listening) >= 2  # gloo's, one for each rank and group
    away = [found for found in listening if not ipaddress.ip_address(found[1].ip).is_loopback]
    assert away == []


GREET = """
for port in map(int, sys.argv[1:]):
    for words in (b"", b"x" * 7, b"GET / HTTP/1.1\\r\\n\\r\\n", bytes(4096)):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
            raw.sendall(words)
            print("connected")
"""


def test_another_user_at_gloos_ports_does_not_end_the_run(waiting):
    """These ports ask for no password; the fixture checks that the run finishes."""
    ports = {
        str(connection.laddr.port)
        for process in waiting.processes
        for connection in process.net_connections("tcp")
        if connection.status == "LISTEN"
    }
    assert run_as_other_user(GREET, *ports).split() == ["connected"] * 4 * len(ports)
    assert all(process.is_running() for process in waiting.processes)


def test_unix_domain_sockets_are_in_folders_that_no_other_user_enters(waiting):
    sockets = {
        c.laddr for process in waiting.processes for c in process.net_connections("unix") if c.laddr
    }
    assert any(name.endswith("/store") for name in sockets), sockets
    assert run_as_other_user(CONNECT, *sockets) == ""


def test_the_fork_server_listens_nowhere(waiting):
    server = waiting.processes[0]
    assert "fork_server" in " ".join(server.cmdline())
    assert server.net_connections() == []


def test_the_store_of_a_run_is_closed_to_another_user(waiting):
    (folder,) = [f for f in waiting.socket_folders if (f / "store").exists()]
    path = str(folder / "store")
    keys = RunStore(StoreAddress(path)).list_keys()
    assert keys  # this user may read them
    assert set(use_store_as_other_user(path)) == {"PermissionError"}
    assert sorted(RunStore(StoreAddress(path)).list_keys()) == sorted(keys)


def test_nobody_serves_the_port_that_libraries_read(waiting):
    """``MASTER_PORT`` is taken, so that no store of another user can be there."""
    address = waiting.master_address
    assert address[0] == "127.0.0.1"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)
    code = f"socket.socket().bind({address!r})"
    with pytest.raises(AssertionError, match="Address already in use"):
        run_as_other_user(code)


def test_no_file_of_a_run_is_readable(waiting):
    """Also where the folders around are open: here the umask hides nothing."""
    folder = waiting.run.folder
    closed = [parent for parent in folder.parents[:-1] if not parent.stat().st_mode & 0o001]
    modes = {parent: parent.stat().st_mode for parent in closed}
    try:
        for parent in closed:
            parent.chmod(0o755)
        assert folder.stat().st_mode & 0o777 == 0o700
        files = [str(path) for path in [folder, *folder.rglob("*")]]
        assert len(files) > 8
        assert readable_by_others(*files) == []
    finally:
        for parent, mode in modes.items():
            parent.chmod(mode)


def test_bundle_and_results_are_readable_by_this_user_alone(waiting):
    storage = waiting.run.record.storage
    paths = [storage.bundle, *storage.results]
    assert len(paths) == 3
    for path in paths:
        assert os.stat(path).st_mode & 0o777 == 0o600
    assert readable_by_others(*paths) == []


def test_nothing_of_a_run_has_a_name_in_shared_memory(waiting):
    pids = {str(process.pid) for process in waiting.processes}
    named = [p.name for p in Path("/dev/shm").iterdir() if pids & set(re.split(r"\W|_", p.name))]
    assert named == []


def test_socket_folders_are_closed(waiting):
    assert waiting.socket_folders
    for folder in waiting.socket_folders:
        assert folder.stat().st_mode & 0o777 == 0o700
    assert readable_by_others(*map(str, waiting.socket_folders)) == []
