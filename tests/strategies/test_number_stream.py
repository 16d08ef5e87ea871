"""Numbers that ranks publish in shared memory arrive in order, and the last rank compares them."""

import threading
import time
from dataclasses import dataclass

import pytest

from nbmgpu.errors import RankError
from nbmgpu.strategies.shared_memory.number_stream import END, TURNS, Difference, NumberStream
from nbmgpu.strategies.shared_memory.signals import RankSignals
from nbmgpu.system.shared_memory import CALL_ORDER, STREAM_LENGTH, SharedMemory


@dataclass
class Rank:
    """One of the ranks, all in this process."""

    signals: RankSignals
    stream: NumberStream


def ranks(count: int) -> list[Rank]:
    memory = SharedMemory.create(count)
    assert memory is not None
    signals = [RankSignals(memory, rank) for rank in range(count)]
    return [Rank(each, NumberStream(memory, each, CALL_ORDER)) for each in signals]


def test_the_last_rank_finds_a_difference() -> None:
    first, second, third = (rank.stream for rank in ranks(3))
    for stream in (first, second, third):
        stream.publish(5)
    first.publish(7)
    assert first.compare() is None
    second.publish(8)
    assert second.compare() == Difference(position=2, own=8, others=[7])
    assert third.compare() is None  # it has not come so far
    assert first.compare() == Difference(position=2, own=7, others=[8])


def test_a_rank_that_runs_ahead_waits_for_nobody_until_the_ring_is_full() -> None:
    ahead, behind = ranks(2)
    for number in range(STREAM_LENGTH):
        ahead.stream.publish(number)
    waiting = threading.Thread(target=ahead.stream.publish, args=(STREAM_LENGTH,), daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    behind.stream.publish(0)
    assert behind.stream.compare() is None
    waiting.join(10)
    assert not waiting.is_alive()
    assert ahead.stream.position == STREAM_LENGTH + 1


def test_ranks_compare_all_numbers_also_where_one_is_ahead_by_the_whole_ring() -> None:
    count, late, early = 5 * STREAM_LENGTH, *(rank.stream for rank in ranks(2))

    def run(stream: NumberStream, delay: float) -> None:
        time.sleep(delay)
        assert not any(stream.check(number) for number in range(count))
        found.append(stream.check(END, wait=True))

    found: list[Difference | None] = []
    threads = [
        threading.Thread(target=run, args=each, daemon=True) for each in ((late, 0.3), (early, 0.0))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == [None, None]
    assert late.position == early.position == count + 1


def test_a_rank_that_is_late_finds_that_another_has_ended() -> None:
    one, two = (rank.stream for rank in ranks(2))
    assert one.check(END) is None
    assert two.check(4) == Difference(position=1, own=4, others=[END])
    assert one.check(END, wait=True) == Difference(position=1, own=END, others=[4])
    assert one.position == 1  # the end is published once


def test_numbers_are_those_of_their_turn_after_the_positions_have_wrapped() -> None:
    one, two = (rank.stream for rank in ranks(2))
    for number in range(TURNS + STREAM_LENGTH + 3):
        one.publish(number)
        two.publish(number + 1)
        assert one.gather(one.position) == [number + 1]
        assert two.gather(two.position) == [number]


def test_a_rank_that_waits_for_one_that_has_left_gets_an_error() -> None:
    here, gone = ranks(2)
    here.stream.publish(1)
    gone.stream.publish(1)
    gone.signals.leave()
    here.stream.wait(1)  # it has come so far
    here.stream.publish(2)
    with pytest.raises(RankError, match="Rank 1 had finished the cell"):
        here.stream.wait(2)


def test_streams_begin_anew_in_the_next_run() -> None:
    one, two = (rank.stream for rank in ranks(2))
    one.publish(1)
    two.publish(2)
    one.clear()
    two.clear()
    one.publish(3)
    assert one.compare() is None
    two.publish(3)
    assert two.compare() is None
    assert (one.position, one.gather(1)) == (1, [3])
