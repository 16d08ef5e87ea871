"""1 GiB of the notebook to two nodes of Ray, played by this machine, that do not see its files."""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import Failed, Figure, Result

if TYPE_CHECKING:
    import numpy

CLUSTERS = Path(__file__).parents[2] / "tests" / "engines"
"""Where the tests have their clusters."""

NODES = ("apart1", "apart2")
NBYTES = 2**30
NICE = 15
"""Priority of Ray's workers by default; receivers of plain copies have the same, and a session of
their own as well: Linux shares the processor out among sessions."""

TIME = "1 GiB from a file to a file on each of 2 nodes, both at once"
RATIO = f"{TIME}: relative to the copies over TCP of the same round"
OURS, WRITING, SENDING = "nbmgpu", "nbmgpu: writing the bundle", "nbmgpu: sending it"
COPY, OVER_TCP = "one copy per node: cp", "one copy per node: over TCP, sendfile"

RECEIVE = """
import os, socket, sys
os.nice(int(sys.argv[2]))
with socket.create_server(("127.0.0.1", 0)) as server, open(sys.argv[1], "wb") as file:
    print(server.getsockname()[1], flush=True)
    connection, buffer = server.accept()[0], bytearray(2**22)
    while size := connection.recv_into(buffer):
        file.write(memoryview(buffer)[:size])
"""
RECORD = {"devices": [], "kernel": {}, "storage": {}}
"""What the actor of a node needs of ``run.json``."""


def measure(rounds: int) -> list[Result]:
    """Measure the actors of nodes, and plain copies, in turn."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name, cluster(Path(name)) as problem:
        if problem:
            return [Failed(TIME, OURS, problem)]
        folder, actors = Path(name), start_actors()
        _write(folder / "bundle")
        _send(folder / "bundle", actors)  # Ray starts processes and imports modules
        ways: dict[str, Callable[[Path], float]] = {
            WRITING: _write,
            SENDING: lambda source: _send(source, actors),
            OURS: lambda source: _write_and_send(source, actors),
            OVER_TCP: lambda source: _copy_over_tcp(source, folder),
            COPY: lambda source: _copy(source, folder),
        }
        results: list[Result] = []
        for _ in range(rounds):
            seconds = {}
            for way, take in ways.items():
                os.sync()  # what others have written does not count
                seconds[way] = take(folder / "bundle")
            results += [Figure(TIME, way, value) for way, value in seconds.items()]
            results += [
                Figure(RATIO, way, seconds[way] / seconds[OVER_TCP], "x")
                for way in (OURS, SENDING, COPY)
            ]
        return results


@functools.cache
def _data() -> numpy.ndarray[Any, Any]:
    import numpy

    return numpy.ones(NBYTES, dtype="uint8")


def _write(path: Path) -> float:
    """Write a bundle of ``NBYTES`` as the kernel does."""
    from nbmgpu.serialization import container

    data = _data()
    begun = time.monotonic()
    container.write(str(path), b"", b"", [(data.ctypes.data, NBYTES)], [memoryview(data)])
    return time.monotonic() - begun


def _write_and_send(bundle: Path, actors: Sequence[Any]) -> float:
    """Write a bundle, and send it once it is complete, with nothing on the disk in between."""
    bundle.unlink()
    return _send(bundle, actors, lambda: _write(bundle))


def _send(
    bundle: Path, actors: Sequence[Any], meanwhile: Callable[[], object] = lambda: None
) -> float:
    """Send a bundle to new copies of a run folder, which are removed then."""
    import ray

    from nbmgpu.engines.ray.bundle_sender import BundleSender

    files = {"run.json": json.dumps(RECORD).encode(), "bundle": b""}
    ray.get([actor.copy_folder.remote("run", files, {}, "") for actor in actors])
    begun = time.monotonic()
    senders = [BundleSender(str(bundle)) for _ in actors]
    for actor, sender in zip(actors, senders, strict=True):
        actor.fetch_bundle.remote("127.0.0.1", sender.port, sender.key)
    meanwhile()
    for sender in senders:
        sender.wait()
    seconds = time.monotonic() - begun
    assert not any(sender.error for sender in senders), senders[0].error
    ray.get([actor.end.remote() for actor in actors])
    return seconds


def _copy(source: Path, folder: Path) -> float:
    targets = [folder / node for node in NODES]
    begun = time.monotonic()
    copying = [
        subprocess.Popen(["nice", f"-n{NICE}", "cp", source, target], start_new_session=True)
        for target in targets
    ]
    assert not any(process.wait() for process in copying)
    seconds = time.monotonic() - begun
    for target in targets:
        target.unlink()
    return seconds


def _copy_over_tcp(source: Path, folder: Path) -> float:
    targets = [folder / node for node in NODES]
    receivers = [
        subprocess.Popen(
            [sys.executable, "-c", RECEIVE, target, str(NICE)],
            stdout=subprocess.PIPE, start_new_session=True,
        )
        for target in targets
    ]  # fmt: skip
    ports = [int(each.stdout.readline()) for each in receivers if each.stdout]

    def send(port: int, receiver: subprocess.Popen[bytes]) -> None:
        with socket.create_connection(("127.0.0.1", port)) as out, source.open("rb") as file:
            out.sendfile(file)
        assert receiver.wait() == 0

    pairs = zip(ports, receivers, strict=True)
    seconds = _at_once([lambda pair=pair: send(*pair) for pair in pairs])
    for target in targets:
        target.unlink()
    return seconds


def _at_once(calls: Sequence[Callable[[], None]]) -> float:
    """Return the seconds of all calls, each in a thread of its own."""
    begun = time.monotonic()
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - begun


def start_actors() -> list[Any]:
    """Start the actor of each node; they end with the driver."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from nbmgpu.engines.ray import node_actor
    from nbmgpu.engines.ray.by_value import send_modules_by_value

    send_modules_by_value()
    ids = [node["NodeID"] for node in ray.nodes() if node["NodeManagerHostname"] in NODES]
    assert len(ids) == len(NODES)
    return [
        ray.remote(node_actor.NodeActor)
        .options(scheduling_strategy=NodeAffinitySchedulingStrategy(each, soft=False))
        .remote()
        for each in ids
    ]


@contextmanager
def cluster(hidden: Path) -> Iterator[str]:
    """Start Ray with nodes that do not see ``hidden``; yield why it cannot, else nothing."""
    sys.path.append(str(CLUSTERS))
    try:
        import pytest
        import ray_cluster
    except ImportError as error:
        yield f"{error.name} is not installed"
        return
    finally:
        sys.path.remove(str(CLUSTERS))
    with ExitStack() as stack:
        try:
            running = ray_cluster.started_ray(dict.fromkeys(NODES, hidden))
            started = stack.enter_context(running)
        except pytest.skip.Exception as error:  # Ray, or what it needs, is not there
            yield str(error)
            return
        import ray  # which reads on import how to authenticate

        ray.init(started.address, log_to_driver=False, logging_level="ERROR")
        stack.callback(ray.shutdown)
        yield ""
