"""The summary as text and as HTML."""

import base64
import html
import math
import re
import time
from html.parser import HTMLParser

import pytest

from nbmgpu.report.summary import summary_html, summary_text
from nbmgpu.runs.events import TensorBoardFolder

CSV = "data:text/csv;charset=utf-8;base64"

EVIL = "<script>alert('é \"✓\"')</script>"


class Reader(HTMLParser):
    """Collects tags, attributes and text, and tracks open tags."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.names, self.links, self.text, self.open = set(), set(), [], "", []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}
        self.links += [value for name, value in attrs if name == "href"]
        if tag != "br":
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def read(html):
    reader = Reader(html)
    assert reader.open == []
    return reader


def test_text_of_a_finished_run(staged):
    run = staged(2, batch_line="64 = 2 x 32", created=time.time() - 12)
    run.start()
    run.points("lr", [0, 1], [0.1, 0.1])
    run.points("loss", [0, 1], [2.5, 0.25])
    run.notice("x did not come back: it cannot be pickled")
    run.finish()
    text = summary_text(run.polled())
    assert re.sub(r"\d\d\.\d s", "12.0 s", text) == (
        "finished  ddp on 2 ranks (cpu), 12.0 s\n"
        "batch     64 = 2 x 32\n"
        "loss      2.5 → 0.25\n"
        "lr        0.1\n"
        "note      x did not come back: it cannot be pickled\n"
        f"folder    {run.run.folder}"
    )


def test_text_of_a_failed_run(staged):
    run = staged(2)
    run.start()
    run.fail(1, "ValueError", "bad\nvalue")
    run.exit(1, 1)
    run.exit(0, -15)
    run.end("failed")
    lines = summary_text(run.polled()).splitlines()
    assert lines[0].startswith("failed   ddp on 2 ranks (cpu), ")
    assert lines[1:5] == [
        "failure  rank 1: ValueError: bad",
        "         value",
        "         line 2: loss = criterion(model(x), y)",
        "ranks    0 ended (SIGTERM), 1 failed (exit 1)",
    ]


def test_html_of_a_failed_run(staged):
    run = staged(2)
    run.start()
    run.fail(1, "ValueError", "bad value")
    run.end("failed")
    text = read(summary_html(run.polled())).text
    assert "✗ failed" in text
    assert "rank 1 failed" in text
    assert "ValueError: bad value" in text
    assert "    1  for x, y in loader:\n→   2      loss = criterion(model(x), y)\n" in text


def test_a_failure_has_its_hint(staged):
    run = staged(1)
    run.fail(0, "IndexError", "Target 17 is out of bounds.")
    run.end("failed")
    html = read(summary_html(run.polled())).text
    assert "Likely cause: A label exceeds the model" in html
    assert "Try: as many outputs" in html
    lines = summary_text(run.run).splitlines()
    assert any("A label exceeds the model" in line for line in lines)
    assert any(line.startswith("try      as many outputs") for line in lines)


def test_speed_and_slowest_rank(staged):
    run = staged(2)
    run.points("samples/s", [0], [1234.0])
    for number in range(3):
        for rank, own in enumerate([0.002, 0.008]):
            sent = 2048.0 * (rank + 1)
            more = {"step_time": 0.01, "own_time": own, "sent": [sent, 3.0]}
            run.heartbeat(rank, step=number + 1, **more)
    run.finish()
    (speed,) = [t for t in summary_text(run.polled()).splitlines() if t.startswith("speed")]
    assert speed.startswith(
        "speed     1,234 samples/s, 10 ms per step; a rank sends 4.0 KiB in 3 collectives; "
        "Rank 1 is the slowest: "
    )
    page = read(summary_html(run.run)).text
    assert "samples/s" in page
    assert "10 ms per step; a rank sends 4.0 KiB in 3 collectives; Rank 1 is the slowest" in page
    assert "rank 1 finished (slow: the others wait for it 60 % of the time)" not in page


@pytest.mark.parametrize("summary", [summary_text, summary_html])
def test_of_an_empty_run(staged, summary):
    assert "starting" in summary(staged(1).run)


@pytest.mark.parametrize("summary", [summary_text, summary_html])
def test_of_a_lost_run(staged, summary):
    run = staged(1, pid=1, create_time=-1.0, created=time.time() - 1e6)
    text = summary(run.run)
    assert "lost" in text
    assert "has not recorded how the run ended" in text


def test_html_is_escaped_and_has_no_scripts_or_links_elsewhere(staged):
    run = staged(1, strategy=EVIL, batch_line=EVIL, cell=EVIL)
    run.start()
    run.points(EVIL, [0, 1, 2], [1.0, 2.0, 3.0])
    run.notice(EVIL)
    run.fail(0, "ValueError", EVIL, line=1)
    run.end("failed", EVIL)
    page = read(summary_html(run.polled()))
    assert page.tags <= {
        "div", "p", "b", "br", "small", "ul", "li", "pre", "svg", "polyline",
        "details", "summary", "table", "thead", "tbody", "tr", "th", "td", "code", "a",
    }  # fmt: skip
    assert not {name for name in page.names if name.startswith("on") or name == "src"}
    assert [address.partition(",")[0] for address in page.links] == [CSV]
    assert page.text.count(EVIL) == 7


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ([1.0, 2.0, 3.0], 1),
        ([1.0], 1),
        ([1.0, math.nan, 2.0, 3.0], 2),
        ([math.nan, math.inf], 0),
        ([5.0, 5.0], 1),
        ([-1.7e308, 1.7e308], 1),
    ],
)
def test_html_draws_finite_lines(staged, values, lines):
    run = staged(1)
    run.points("loss", list(range(len(values))), values)
    html = summary_html(run.polled())
    polylines = re.findall(r'points="([^"]*)"', html)
    assert len(polylines) == lines
    coordinates = [float(n) for line in polylines for n in re.split("[ ,]", line)]
    assert all(0 <= coordinate <= 150 for coordinate in coordinates)


def test_100_000_points_are_fast_and_downsampled(staged):
    run = staged(1)
    for name in ("loss", "lr", "acc"):
        run.points(name, list(range(100_000)), [math.sin(i / 1000) for i in range(100_000)])
    run.run.poll()
    start = time.perf_counter()
    html = summary_html(run.run)
    assert time.perf_counter() - start < 1.5
    assert len(html) < 20_000


def table_of(page):
    """Return the rows of the table as lists of texts."""
    rows = re.findall("<tr>(.*?)</tr>", page)
    cells = [re.findall("<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]
    return [[html.unescape(re.sub("<.*?>", "", cell)) for cell in row] for row in cells]


def test_html_has_a_table_of_the_metrics(staged):
    run = staged(2)
    run.points("loss", [1, 2, 3, 4], [3.0, math.nan, 0.5, 1.0])
    run.points("val/acc", [2, 1200], [0.25, 0.75])
    run.points("never", [1], [math.inf])
    page = summary_html(run.polled())
    assert table_of(page) == [
        ["Metric", "First", "Last", "Lowest", "Highest", "Points"],
        ["loss", "3", "1", "0.5 at step 3", "3 at step 1", "4"],
        ["val/acc", "0.25", "0.75", "0.25 at step 2", "0.75 at step 1,200", "2"],
        ["never", "inf", "inf", "-", "-", "1"],
    ]
    assert re.findall("<b>([0-9.]+)</b> <small>", page) == ["0.5", "0.75"]  # the best ones


def test_html_has_all_points_as_csv_in_a_link(staged):
    run = staged(2)
    run.points("loss", [1, 2], [0.1234567890123, math.nan])
    run.points("ä=", [2], [1e-300])
    (link,) = read(summary_html(run.polled())).links
    found = base64.b64decode(link.removeprefix(f"{CSV},")).decode()
    assert found == "step,loss,ä=\n1,0.1234567890123,\n2,nan,1e-300\n"


@pytest.mark.parametrize(("points", "has_link"), [(1000, True), (3000, False), (9000, False)])
def test_a_long_run_has_no_link_with_csv(staged, points, has_link):
    run = staged(1)
    run.points("loss", list(range(points)), [1 / (step + 3) for step in range(points)])
    page = summary_html(run.polled())
    assert bool(read(page).links) == has_link
    assert len(page) < 60_000
    code = f'nbmgpu.find_run("{run.run.id}").metrics.to_csv("metrics.csv")'
    assert f"<code>{html.escape(code)}</code>" in page


def test_a_folder_for_tensorboard_is_named(staged):
    run = staged(1)
    for folder in ("/a <b>/logs", "/a <b>/logs/hparams", "/other"):
        run.write(0, TensorBoardFolder(time=1.0, rank=0, folder=folder))
    commands = ["tensorboard --logdir '/a <b>/logs'", "tensorboard --logdir /other"]
    page = summary_html(run.polled())
    assert [html.unescape(code) for code in re.findall("<code>(.*?)</code>", page)] == commands
    lines = [line for line in summary_text(run.run).splitlines() if "--logdir" in line]
    assert [line.removeprefix("TensorBoard").strip() for line in lines] == commands


def test_surplus_curves_are_counted(staged):
    run = staged(1)
    for index in range(30):
        run.points(f"metric {index}", [0], [1.0])
    more = f'18 more in nbmgpu.find_run("{run.run.id}").metrics'
    assert more in summary_text(run.polled())
    assert more in html.unescape(summary_html(run.run))


def test_text_has_no_control_characters(staged):
    run = staged(1)
    run.fail(0, "ValueError", "\x1b[31mred\x1b[0m\x07")
    assert "ValueError: red\n" in summary_text(run.polled())


def test_code_in_a_notice(staged):
    run = staged(1)
    run.start()
    run.notice("`nn.Dropout` draws `<b>`, `not\nclosed")
    run.finish()
    html = summary_html(run.polled())
    assert "<code>nn.Dropout</code> draws <code>&lt;b&gt;</code>, `not\nclosed" in html


def test_a_loss_that_has_become_nan(staged):
    run = staged(2)
    run.start()
    run.points("loss", [1, 2, 3, 4], [3.0, math.nan, math.inf, math.nan])
    assert "The loss is nan from step 2 on: training has diverged." in summary_text(run.polled())
    run.points("loss", [5], [1.0])
    assert "diverged" not in summary_text(run.polled())
