"""No rule of an operator is believed untested: each is tried on torch's own samples."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SURVEY = Path(__file__).with_name("operator_survey.py")

pytestmark = [pytest.mark.slow, pytest.mark.matrix("nbmgpu/rank/batch_dependence")]

PARTS = 3

KNOWN = {
    "_softmax_backward_data": "a backward pass is not followed",
    "_unsafe_masked_index_put_accumulate": "a backward pass is not followed",
    "gradient": "coordinates with one per sample",
    "index_select": "one index for samples and features alike",
    "linalg.vander": "as many powers as samples",
    "meshgrid.list_of_tensors": "a grid of samples with samples",
    "meshgrid.variadic_tensors": "a grid of samples with samples",
    "nn.functional.bilinear": "a weight with a row per sample",
    "nn.functional.conv1d": "a weight with a row per sample",
    "nn.functional.conv2d": "a weight with a row per sample",
    "nn.functional.conv3d": "a weight with a row per sample",
    "nn.functional.multi_head_attention_forward": "a weight with a row per sample",
    "nn.functional.multi_margin_loss": "samples as classes of one",
    "nn.functional.multilabel_margin_loss": "samples as classes of one",
}
"""Samples that no batch looks like, by operator."""


@pytest.mark.parametrize("part", range(PARTS))
def test_rules_are_right(part: int) -> None:
    done = subprocess.run(
        [sys.executable, str(SURVEY), str(part), str(PARTS)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name: wrong for name, (_, wrong) in found.items() if wrong and name not in KNOWN} == {}
    proven = sum("local" in counts for counts, _ in found.values())
    assert proven > len(found) / 2
