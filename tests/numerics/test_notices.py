"""Notices of what cannot be equal: cells that are given a topic, and cells that are not."""

from __future__ import annotations

import re
import textwrap

import pytest
from idioms import notices
from idioms.comparison import assert_equal
from idioms.idiom import TRAIN, idiom
from idioms.notebook import notebook
from idioms.sources import BATCH_NORM
from matrix_selection import sampled

import nbmgpu

EXERCISED = ("nbmgpu/rank", "tests/idioms")


@pytest.mark.parametrize(
    ("topic", "cell", "setup"),
    sampled(notices.TOPICS.values(), 3, *EXERCISED, ids=notices.TOPICS),
)
def test_a_notice_is_given(topic: str, cell: str, setup: str) -> None:
    namespace = notebook(textwrap.dedent(setup))
    run = nbmgpu.run(textwrap.dedent(cell), namespace, gpus=2, cpu=True, exact="never")
    topics = set(run.view.notices) - {"devices", "rank-0-values"}
    assert topics - {"not-sharded"} == {topic} - {"not-sharded"}
    assert topic in topics


@pytest.mark.parametrize(
    ("cell", "setup"), sampled(notices.NONE.values(), 2, *EXERCISED, ids=notices.NONE)
)
def test_no_notice_is_given(cell: str, setup: str) -> None:
    namespace = notebook(textwrap.dedent(setup))
    before = set(namespace)
    run = nbmgpu.run(textwrap.dedent(cell), namespace, gpus=2, cpu=True, exact="never")
    assert set(run.view.notices) <= {"devices", "rank-0-values"}
    notice = run.view.notices.get("rank-0-values")
    named = set(re.findall(r"`(\w+)`", notice.text)) if notice else set()
    assert not named & before, "the notebook's own objects are one device's"


def test_batches_that_cannot_be_split_have_the_numbers_of_one_device() -> None:
    _, cell, setup = notices.TOPICS["batches that cannot be split"]
    assert_equal(idiom("not split", cell, setup=setup))


def test_the_notice_names_variables_with_values_of_rank_0() -> None:
    cell = TRAIN + "        first = x[0, 0].item()\n"
    run = nbmgpu.run(cell, notebook(), gpus=2, cpu=True, exact="never")
    assert "`first`" in run.view.notices["rank-0-values"].text
    assert "`losses`" not in run.view.notices["rank-0-values"].text
    assert "`x`" not in run.view.notices["rank-0-values"].text, "a loop's variable"
    assert run.results[1]["first"] != run.results[0]["first"]


def test_with_whole_batches_the_notice_knows_of_no_shard() -> None:
    cell = TRAIN + "import os; process = str(os.getpid())\n"
    run = nbmgpu.run(cell, notebook(), gpus=2, cpu=True, exact="always")
    text = run.view.notices["rank-0-values"].text
    assert text.startswith("`process`: the value is rank 0's, and other ranks have another one")
    assert "shard" not in text
    assert "--exact" not in text


def test_the_notice_names_objects_to_which_values_of_rank_0_were_added() -> None:
    cell = (
        TRAIN
        + """
        outs.append(model(x).detach())
        history["right"].append((model(x).argmax(1) == y).float().mean())
"""
    )
    setup = "outs, history, names = [], {'right': []}, ['left', 'alone']"
    run = nbmgpu.run(cell, notebook(setup), gpus=2, cpu=True, exact="never")
    text = run.view.notices["rank-0-values"].text
    assert "`outs`" in text
    assert "`history`" in text
    assert "`losses`" not in text
    assert "`names`" not in text
    assert run.results[0]["history"] != run.results[1]["history"]


def test_running_statistics_are_the_same_on_all_ranks() -> None:
    namespace = notebook(textwrap.dedent(BATCH_NORM))
    run = nbmgpu.run(
        TRAIN + "\nmean = model[1].running_mean.clone()\n",
        namespace,
        gpus=2,
        cpu=True,
        exact="never",
    )
    assert run.results[0]["mean"].allclose(run.results[1]["mean"])
    assert namespace["model"][1].running_mean.abs().sum() > 0


@pytest.mark.parametrize(
    ("options", "number"), [({}, 1), ({"strategy": "fsdp"}, 1), ({"batch": "per-rank"}, 0)]
)
def test_the_first_notice_of_other_numbers_offers_those_of_one_device(
    options: dict[str, str], number: int
) -> None:
    setup = textwrap.dedent(BATCH_NORM) + "model.append(nn.Dropout(0.1))\n"
    run = nbmgpu.run(TRAIN, notebook(setup), gpus=2, cpu=True, exact="never", **options)
    assert {"batch-norm", "random-step"} <= set(run.view.notices)
    texts = [notice.text for notice in run.view.notices.values()]
    assert sum("--exact always" in text for text in texts) == number
