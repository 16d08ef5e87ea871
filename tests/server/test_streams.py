"""The websocket streams: messages, visibility, and no work without clients."""

import contextlib
import dataclasses
import json
import time

import psutil
import pytest
import websocket
from jupyter_server_process import until

from nbmgpu.report.views.registry import BUILT_IN
from nbmgpu.runs.folder import COLLECTED_FILE
from nbmgpu.server.payloads import CloseCode, Update, Visibility

CLOSED = 8
FIRST, SECOND = "20260101-120000-000aa", "20260101-120001-000bb"


def receive(stream, condition=lambda update: True):
    """Return the next message that ``condition`` is true for; of runs, not devices."""
    for _ in range(15):
        update = json.loads(stream.recv())
        if condition(update):
            return update
    raise AssertionError(update)


def send_visibility(stream, visible):
    stream.send(json.dumps(dataclasses.asdict(Visibility(visible))))


def assert_no_messages(stream, seconds=2.5):
    """Assert that no messages arrive, except those already sent."""
    time.sleep(0.5)
    stream.settimeout(0.1)
    with contextlib.suppress(websocket.WebSocketTimeoutException):
        stream.recv()
    stream.settimeout(seconds)
    with pytest.raises(websocket.WebSocketTimeoutException):
        stream.recv()
    stream.settimeout(20)


def test_only_changed_entries_are_sent(runs, stage):
    first, second = stage(1, id=FIRST), stage(1, id=SECOND)
    first.finish()
    second.start()
    with runs.listen("stream") as stream:
        update = receive(stream)
        assert set(update) == {field.name for field in dataclasses.fields(Update)}
        assert [line["id"] for line in update["runs"]] == [SECOND, FIRST]
        assert update["devices"][0]["name"] == "cpu"
        assert receive(stream, lambda n: n["runs"])["runs"][0]["id"] == SECOND  # its duration grows
        second.fail(0, message="bad")
        second.end("failed")
        (line,) = receive(stream, lambda n: any(line["status"]["over"] for line in n["runs"]))[
            "runs"
        ]
        assert (line["id"], line["status"]["state"]) == (SECOND, "failed")
        (first.run.folder / COLLECTED_FILE).touch()  # as its kernel does
        assert runs.request(f"runs/{FIRST}", "DELETE").status == 204
        update = receive(stream, lambda n: n["gone"])
        assert (update["gone"], update["runs"]) == ([FIRST], [])


def test_a_hidden_page_gets_no_messages_until_it_is_visible(runs, stage):
    stage(1, id=FIRST).start()
    with runs.listen("stream") as stream, runs.listen(f"runs/{FIRST}/stream") as parts:
        receive(stream)
        assert json.loads(parts.recv())
        for hidden in (stream, parts):
            send_visibility(hidden, False)
        assert_no_messages(stream)
        assert_no_messages(parts, 1)
        staged = stage(1, id=SECOND)
        staged.start()
        send_visibility(stream, True)
        assert SECOND in {line["id"] for line in receive(stream, lambda n: n["runs"])["runs"]}
        send_visibility(parts, True)
        assert "status" in json.loads(parts.recv())


def test_invalid_messages_are_ignored(runs):
    with runs.listen("stream") as stream:
        receive(stream)
        for word in ("", "{", "[]", "5", '{"visible": "x"}', '{"other": 1}'):
            stream.send(word)
        stream.send_binary(b"\xff\xfe")
        receive(stream)


def test_the_server_reads_nothing_for_hidden_pages(runs, stage):
    """Counts read system calls of the server process."""
    for number in range(20):
        stage(1, id=f"20260101-1200{number:02d}-000aa").finish()
    process = psutil.Process(runs.process.pid)

    def reads(seconds=2.0):
        before = process.io_counters().read_count
        time.sleep(seconds)
        return process.io_counters().read_count - before

    with runs.listen("stream") as stream:
        receive(stream)
        busy = reads()
        send_visibility(stream, False)
        time.sleep(1.5)
        hidden = reads()
    time.sleep(1.5)
    gone = reads()
    assert busy > 20, (busy, hidden, gone)
    assert hidden <= busy / 5, (busy, hidden, gone)
    assert gone <= busy / 5, (busy, hidden, gone)


def test_a_run_stream_sends_changed_parts(runs, stage):
    staged = stage(2, id=FIRST)
    staged.start()
    with runs.listen(f"runs/{FIRST}/stream") as stream:
        first = json.loads(stream.recv())
        assert set(first) == set(BUILT_IN)
        staged.points("loss", [1, 2], [1.0, 0.5])
        message = receive(stream, lambda parts: "curves" in parts)
        assert message["curves"]["shown"][0]["last"] == "0.5"
        assert "about" not in message
        staged.finish()
        message = {}
        while True:
            code, data = stream.recv_data()
            if code == CLOSED:
                break
            message |= json.loads(data)
        assert message["status"]["state"] == "finished"
        assert int.from_bytes(data[:2], "big") == CloseCode.OVER


def test_parts_are_sent_four_times_a_second(runs, stage):
    staged = stage(1, id=FIRST)
    staged.start()
    with runs.listen(f"runs/{FIRST}/stream") as stream:
        json.loads(stream.recv())
        start, received = time.monotonic(), 0
        for step in range(40):
            staged.points("loss", [step], [float(step)])
            stream.settimeout(0.1)
            try:
                received += bool(json.loads(stream.recv()))
            except websocket.WebSocketTimeoutException:
                pass
        rate = received / (time.monotonic() - start)
    assert 1 < rate < 5, rate


@pytest.mark.parametrize("name", ["x", FIRST])
def test_a_stream_of_a_missing_run_is_closed(runs, name):
    with runs.listen(f"runs/{name}/stream") as stream:
        code, data = stream.recv_data()
    assert code == CLOSED
    assert int.from_bytes(data[:2], "big") == CloseCode.GONE
    assert name in data[2:].decode()


def test_the_stream_of_a_deleted_run_is_closed(runs, stage):
    staged = stage(1, id=FIRST)
    staged.start()
    with runs.listen(f"runs/{FIRST}/stream") as stream:
        stream.recv()
        staged.run.folder.rename(runs.runs / "elsewhere")
        while (message := stream.recv_data())[0] != CLOSED:
            pass
    assert int.from_bytes(message[1][:2], "big") == CloseCode.GONE


def test_many_clients_leak_nothing(runs, stage):
    stage(1, id=FIRST).start()
    process = psutil.Process(runs.process.pid)
    runs.request("status")
    for _ in range(2):
        for _ in range(10):
            with runs.listen("stream") as stream, runs.listen(f"runs/{FIRST}/stream") as parts:
                stream.recv()
                parts.recv()
        descriptors = process.num_fds()
    until(lambda: process.num_fds() <= descriptors - 2 or process.num_fds() < 60)
    assert process.num_threads() < 20
    assert "Traceback" not in runs.log.read_text()
