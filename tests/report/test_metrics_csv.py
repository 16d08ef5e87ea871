"""All points of all metrics as CSV, in pages."""

import csv
import io
import math
import time

import numpy as np
import pandas as pd
import pytest

from nbmgpu.report.metrics_csv import PAGE_VALUES, CsvRequest, csv_page, csv_pages


def rows_of(run):
    return list(csv.reader(io.StringIO("".join(csv_pages(run.polled())))))


def test_a_column_per_metric_and_a_row_per_step(staged):
    run = staged(2)
    run.points("val/loss", [2], [1 / 3])
    run.points("loss", [1, 2, 4], [0.1, math.nan, math.inf])
    run.points("loss", [1], [0.2], rank=1)
    assert rows_of(run) == [
        ["step", "loss", "val/loss"],
        ["1", repr((0.1 + 0.2) / 2), ""],
        ["2", "nan", repr(1 / 3)],
        ["4", "inf", ""],
    ]


def test_the_epoch_as_far_as_it_is_known(staged):
    run = staged(1)
    run.points("loss", [1, 2, 3, 4, 5], [1.0] * 5)
    run.progress(1, 4, train_step=1)
    run.progress(4, 4, train_step=4)
    assert rows_of(run)[0] == ["step", "epoch", "loss"]
    assert [row[1] for row in rows_of(run)[1:]] == ["0.25", "0.5", "0.75", "1", ""]


def test_metrics_named_as_other_columns_keep_a_column(staged):
    run = staged(1)
    run.points("epoch", [1], [7.0])
    run.points('a,"b"\n', [1], [8.0])
    run.progress(1, 4, train_step=1)
    assert rows_of(run) == [
        ["step", "epoch", "epoch (metric)", 'a,"b"\n'],
        ["1", "0.25", "7.0", "8.0"],
    ]


def test_a_run_without_metrics_has_only_the_title(staged):
    assert rows_of(staged(1)) == [["step"]]


@pytest.mark.parametrize("metrics", [1, 7])
def test_many_pages_are_the_same_as_the_metrics_in_python(staged, metrics):
    run, random = staged(1), np.random.default_rng(0)
    for metric in range(metrics):
        steps = np.flatnonzero(random.random(30_000) < 0.7).tolist()
        run.points(f"metric {metric}", steps, random.normal(size=len(steps)).tolist())
    found = run.polled()
    pages = list(csv_pages(found))
    assert len(pages) >= 30_000 * metrics // PAGE_VALUES
    assert max(map(len, pages)) < 25 * PAGE_VALUES
    frame = pd.read_csv(io.StringIO("".join(pages)), index_col="step")
    pd.testing.assert_frame_equal(frame, found.metrics, rtol=1e-12)  # pandas rounds while it reads
    texts = [row[1] for row in csv.reader(pages[0].splitlines()[1:]) if row[1]]
    assert [float(text) for text in texts] == found.metrics["metric 0"].dropna()[
        : len(texts)
    ].tolist()


def test_a_page_keeps_the_columns_of_the_first_one(staged):
    run = staged(1)
    run.points("loss", [1], [1.0])
    first = csv_page(run.polled(), CsvRequest())
    assert (first.text, first.last, first.left) == ("step,loss\n1,1.0\n", 1, 0)
    run.points("acc", [2], [0.5])
    run.points("loss", [2], [2.0])
    second = csv_page(run.polled(), CsvRequest(first.last, first.columns))
    assert second.text == "2,2.0\n"
    assert csv_page(run.run, CsvRequest(second.last, first.columns)).text == ""


def test_a_page_costs_as_much_at_the_end_of_a_long_run_as_at_its_beginning(staged):
    run = staged(1)
    run.points("loss", list(range(500_000)), [1.0] * 500_000)
    found = run.polled()
    first = csv_page(found, CsvRequest())

    def seconds(after):
        begun = time.process_time()
        for _ in range(10):
            csv_page(found, CsvRequest(after, first.columns))
        return time.process_time() - begun

    early, late = seconds(5_000), seconds(480_000)
    assert late < 5 * early
