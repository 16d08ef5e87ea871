"""Pages of logs: content, order, search and speed."""

import time
import tracemalloc
from array import array

import pytest

from nbmgpu.report.log_file import CHUNK, LINE_BYTES, SearchResult
from nbmgpu.report.log_pages import ALL, MAX_LINES, LogReader, LogRequest


def page(reader, rank=0, first=0, count=10, search=""):
    return reader.page(LogRequest(rank, first, count, search))


def texts(shown):
    return [line.text for line in shown.lines]


class TestOneRank:
    def test_a_rank_without_output(self, staged):
        reader = LogReader(staged(2).run)
        shown = page(reader, rank=1)
        assert (shown.total, shown.lines) == (0, [])
        assert [size.lines for size in reader.sizes()] == [0, 0]

    @pytest.mark.parametrize("rank", [2, 99, -2])
    def test_an_invalid_rank(self, staged, rank):
        assert page(LogReader(staged(2).run), rank).total == 0

    def test_pages_have_the_requested_lines(self, staged):
        run = staged(1)
        run.log(0, "".join(f"line {n}\n" for n in range(100)))
        reader = LogReader(run.run)
        shown = page(reader, first=40, count=3)
        assert texts(shown) == ["line 40", "line 41", "line 42"]
        assert [(line.number, line.index) for line in shown.lines] == [(40, 40), (41, 41), (42, 42)]
        assert (shown.first, shown.total) == (40, 100)
        assert texts(page(reader, first=-1, count=2)) == ["line 98", "line 99"]
        assert texts(page(reader, first=99, count=5)) == ["line 99"]
        assert texts(page(reader, first=200)) == []

    def test_the_page_size_is_limited(self, staged):
        run = staged(1)
        run.log(0, "x\n" * (MAX_LINES + 10))
        assert len(page(LogReader(run.run), count=10**9).lines) == MAX_LINES
        assert page(LogReader(run.run), count=-5).lines == []

    def test_appended_text_is_read_also_within_a_line(self, staged):
        run = staged(1)
        reader = LogReader(run.run)
        run.log(0, "one\ntw")
        assert texts(page(reader)) == ["one", "tw"]
        run.log(0, "o\nthree\n")
        assert texts(page(reader)) == ["one", "two", "three"]
        (size,) = reader.sizes()
        assert (size.lines, size.size) == (3, 14)

    def test_empty_lines_are_kept(self, staged):
        run = staged(1)
        run.log(0, "\n\na\n")
        assert texts(page(LogReader(run.run))) == ["", "", "a"]

    def test_text_is_that_of_a_terminal_with_colours(self, staged):
        run = staged(1)
        run.log(0, b"\x1b[31mred\x1b[0m\n10%\r50%\r100%\r\n<script>\xc3\xa9\xff\n")
        assert texts(page(LogReader(run.run))) == ["\x1b[31mred\x1b[0m", "100%", "<script>é�"]

    def test_stderr_is_marked(self, staged):
        run = staged(1)
        run.log(0, "out\n")
        run.log(0, "warning\nmore of it\n", stderr=True)
        run.log(0, "out\n")
        shown = page(LogReader(run.polled()))
        assert [line.stderr for line in shown.lines] == [False, True, True, False]

    def test_long_lines_are_truncated(self, staged):
        run = staged(1)
        run.log(0, "x" * (LINE_BYTES + 5) + "\nnext\n")
        assert texts(page(LogReader(run.run))) == ["x" * LINE_BYTES + " … 6 bytes more", "next"]

    def test_only_the_last_state_of_a_bar_is_kept(self, staged):
        run = staged(1)
        run.log(0, "".join(f"\r{n}% done" for n in range(5000)))
        assert texts(page(LogReader(run.run))) == ["4999% done"]


class TestSearch:
    def test_search_ignores_case(self, staged):
        run = staged(1)
        run.log(0, "Alpha\nbeta\nalphabet\n(a+)\n")
        reader = LogReader(run.run)
        shown = page(reader, search="alpha")
        assert texts(shown) == ["Alpha", "alphabet"]
        assert [line.index for line in shown.lines] == [0, 2]
        assert texts(page(reader, search="(a+)")) == ["(a+)"]
        assert page(reader, search="gamma").total == 0

    def test_appended_lines_are_searched(self, staged):
        run = staged(1)
        reader = LogReader(run.run)
        assert page(reader, search="needle").total == 0
        run.log(0, "hay\nnee")
        assert page(reader, search="needle").total == 0
        run.log(0, "dle\nhay\nneedle")
        assert page(reader, search="needle").total == 2
        run.log(0, "s and more needles\nneedle\n")
        assert [line.number for line in page(reader, search="needle").lines] == [1, 3, 4]

    def test_search_in_all_ranks(self, staged):
        run = staged(2)
        run.log(0, "a\nb\n")
        run.log(1, "b\na\n")
        shown = page(LogReader(run.run), ALL, search="a")
        assert [(line.rank, line.number) for line in shown.lines] == [(0, 0), (1, 1)]


class TestAllRanks:
    def ranks(self, shown):
        return "".join(str(line.rank) for line in shown.lines)

    def test_lines_are_sorted_by_time(self, staged):
        run = staged(2)
        for number in range(3):
            for rank in (1, 0):
                run.log(rank, f"number {number}\n")
                run.heartbeat(rank)
        shown = page(LogReader(run.polled()), ALL)
        assert texts(shown) == [f"number {n // 2}" for n in range(6)]
        assert self.ranks(shown) == "101010"

    def test_shown_lines_keep_their_order(self, staged):
        run = staged(2)
        reader = LogReader(run.run)
        run.log(0, "a\n")
        run.heartbeat(0)
        run.log(1, "b\n")
        run.heartbeat(1)
        run.heartbeat(0)
        run.polled()
        before = texts(page(reader, ALL))
        run.log(1, "c\nd\n")
        run.log(0, "e\n")
        for rank in range(2):
            run.heartbeat(rank)
        run.polled()
        assert texts(page(reader, ALL))[:2] == before == ["a", "b"]
        assert sorted(texts(page(reader, ALL))[2:]) == ["c", "d", "e"]

    def test_no_line_is_lost_or_shown_twice_while_logs_grow(self, staged):
        run = staged(3)
        reader = LogReader(run.run)
        written = 0
        for turn in range(40):
            for rank in range(3):
                if (turn + rank) % 3:
                    run.log(rank, f"{rank}:{turn}\n", stderr=turn % 7 == 0)
                    written += 1
                if (turn * rank) % 4 == 0:
                    run.heartbeat(rank)
            run.polled()
            shown = page(reader, ALL, count=1000)
            assert len({(line.rank, line.number) for line in shown.lines}) == written
            assert shown.total == written
        for rank in range(3):  # lines of each rank stay in order
            own = [line.number for line in shown.lines if line.rank == rank]
            assert own == sorted(own)

    def test_a_silent_rank_delays_others_only_briefly(self, staged):
        run = staged(2)
        now = time.time()
        run.log(0, "early\n")
        run.vitals_at(now - 60, 0)
        run.vitals_at(now - 60, 1)
        run.log(0, "late\n")
        run.vitals_at(now, 0)
        reader = LogReader(run.polled())
        assert texts(page(reader, ALL)) == ["early", "late"]

    def test_all_lines_of_a_run_without_heartbeats_are_shown(self, staged):
        run = staged(2)
        run.log(1, "b\n")
        run.log(0, "a\n")
        run.finish()
        assert texts(page(LogReader(run.polled()), ALL)) == ["a", "b"]


class TestSpeed:
    @pytest.fixture
    def long(self, staged):
        run = staged(2)
        for rank in range(2):
            lines = (f"rank {rank} step {n} loss 0.{n}\n" for n in range(100_000))
            run.log(rank, "".join(lines))
            run.heartbeat(rank)
        run.polled()
        return run

    @pytest.mark.parametrize("rank", [0, ALL])
    @pytest.mark.parametrize("search", ["", "99999"])
    def test_pages_of_100_000_lines_are_fast(self, long, rank, search):
        reader = LogReader(long.run)
        start = time.perf_counter()
        page(reader, rank, first=-1, count=200, search=search)
        assert time.perf_counter() - start < 0.5  # the files are read for the first time
        long.log(0, "one more 99999\n")
        start = time.perf_counter()
        shown = page(reader, rank, first=-1, count=200, search=search)
        assert time.perf_counter() - start < 0.1
        assert shown.lines[-1].text == "one more 99999"
        start = time.perf_counter()
        page(reader, rank, first=0, count=200, search=search)
        assert time.perf_counter() - start < 0.1

    def test_a_line_across_chunks(self, staged):
        run = staged(1)
        run.log(0, "x" * (CHUNK - 3) + "needle\nafter\n")
        reader = LogReader(run.run)
        assert page(reader).total == 2
        assert page(reader, search="needle").total == 1
        assert texts(page(reader, first=1)) == ["after"]


def test_a_long_line_is_searched_once_and_in_chunks(staged):
    run = staged(1)
    run.log(0, "x" * (4 * CHUNK - 3) + "needle")
    found = SearchResult("NEEDLE")
    path, size = run.run.log_path(0), 4 * CHUNK + 3
    starts = array("Q", [0])
    tracemalloc.start()
    try:
        assert found.update(path, starts, size).tolist() == [0]
        assert tracemalloc.get_traced_memory()[1] < 2.5 * CHUNK
        tracemalloc.reset_peak()
        run.log(0, " and a needle")
        assert found.update(path, starts, size + 13).tolist() == [0]
        assert tracemalloc.get_traced_memory()[1] < CHUNK / 8
    finally:
        tracemalloc.stop()
