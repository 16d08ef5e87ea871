"""The table of metrics: extremes, means of epochs or points, and which value is the best."""

import math

from nbmgpu.report.metric_rows import ROWS, Epoch, Extreme, last_epoch, metric_table


def table(run):
    return metric_table(run.polled().view)


class TestRows:
    def test_extremes_are_at_their_first_step_and_ignore_nonfinite_values(self, staged):
        run = staged(1)
        run.points("loss", [0, 1, 2, 3, 4, 5], [3.0, 1.0, math.nan, 1.0, math.inf, 2.0])
        (row,) = table(run).rows
        assert (row.lowest, row.highest) == (Extreme("1", 1), Extreme("3", 0))
        assert (row.last, row.finite, row.points, row.best) == ("2", True, 6, "lowest")
        assert row.mean == "1.75"

    def test_of_all_points_also_where_the_curve_is_thinned(self, staged):
        run = staged(1)
        values = [1.0] * 50_000
        values[31_234] = -5.0
        run.points("reward", list(range(50_000)), values)
        (row,) = table(run).rows
        assert row.lowest == Extreme("-5", 31_234)
        assert (row.points, row.best) == (50_000, "highest")

    def test_without_a_finite_value(self, staged):
        run = staged(1)
        run.points("x", [0, 1], [math.nan, math.inf])
        (row,) = table(run).rows
        assert (row.lowest, row.highest, row.mean) == (None, None, "")
        assert (row.last, row.finite, row.best) == ("inf", False, "")

    def test_the_loss_is_first_rates_are_last_and_rows_are_limited(self, staged):
        run = staged(1)
        run.points("samples/s", [0], [100.0])
        run.points("lr", [0], [0.1])
        run.points("loss", [0], [2.0])
        assert [row.name for row in table(run).rows] == ["loss", "lr", "samples/s"]
        for index in range(ROWS):
            run.points(f"metric {index}", [0], [0.0])
        many = table(run)
        assert (len(many.rows), many.hidden) == (ROWS, 3)


class TestMeans:
    def test_of_the_last_ten_points_until_an_epoch_is_complete(self, staged):
        run = staged(1)
        run.points("loss", list(range(1, 21)), [0.0] * 10 + [1.0] * 10)
        run.progress(15, 20, train_step=15)
        unfinished = table(run)
        assert (unfinished.epoch, unfinished.recent, unfinished.rows[0].mean) == (0, 10, "1")

    def test_of_the_last_complete_epoch(self, staged):
        run = staged(1)
        run.points("loss", list(range(1, 26)), [9.0] * 10 + [2.0] * 10 + [5.0] * 5)
        run.points("val/acc", [10, 20], [0.25, 0.5])
        run.points("once", [3], [1.0])
        for epoch, step in ((1, 10), (2, 10), (3, 5)):
            run.progress(step, 10, epoch=epoch, train_step=10 * (epoch - 1) + step)
        found = table(run)
        assert found.epoch == 2
        assert {row.name: row.mean for row in found.rows} == {
            "loss": "2", "val/acc": "0.5", "once": "",
        }  # fmt: skip

    def test_the_end_of_an_epoch_lies_between_known_positions(self):
        assert last_epoch([(5, 0.5), (15, 1.5), (25, 2.5)]) == Epoch(2, before=10, last=20)
        assert last_epoch([(4, 0.5), (8, 1.0)]) == Epoch(1, before=0, last=8)
        assert last_epoch([(5, 0.5)]) is None
        assert last_epoch([]) is None
