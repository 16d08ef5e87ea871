"""No rule of an operator is believed untested: each is tried on torch's own samples."""

from __future__ import annotations

import warnings

import pytest
import torch
from operator_survey import survey

pytestmark = [pytest.mark.slow, pytest.mark.matrix("nbmgpu/rank/batch_dependence")]

PARTS = 8

CRASHING = {"lu_unpack"}
"""Operators that end the process for some numbers of rows."""

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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db

        infos = [info for info in op_db if torch.float32 in info.dtypes][part::PARTS]
        found = [survey(info) for info in infos if info.name not in CRASHING]
    assert {each.name: each.wrong for each in found if each.wrong and each.name not in KNOWN} == {}
    proven = sum(each.counts["local"] > 0 for each in found)
    assert proven > len(found) / 2
