"""Patches of torch.nn.functional under torch's modes, which make a function call itself again.

A default device is such a mode, and so is the recorder of what a trial reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore

from nbmgpu.patches import PatchStack
from nbmgpu.strategies.exact.batch_norm import BatchStatistics, patch_batch_norm
from nbmgpu.strategies.sequence.dropout import patch_dropout
from nbmgpu.strategies.sequence.region import Region
from nbmgpu.strategies.tensor_reads import ReadRecorder

MODES = {
    "none": nullcontext,
    "a default device": lambda: torch.device("cpu"),
    "the recorder of a trial": ReadRecorder,
}


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> AbstractContextManager[object]:
    return MODES[request.param]()


@pytest.fixture
def region() -> Iterator[Region]:
    """The second of two ranks, with half of eight positions."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        yield Region(1, 8, 2, dist.group.WORLD, "heads")
    finally:
        dist.destroy_process_group()


def test_dropout_of_a_slice_is_one_operation(
    mode: AbstractContextManager[object], region: Region
) -> None:
    torch.manual_seed(0)
    whole = F.dropout(torch.ones(2, 8, 3), 0.5)
    torch.manual_seed(0)
    with PatchStack() as patches:
        patch_dropout(patches)
        with mode, region.active():
            part = F.dropout(torch.ones(2, 4, 3), 0.5)
    assert region.found == [True]
    torch.testing.assert_close(part, whole[:, 4:])


def test_each_batch_normalization_has_its_own_statistics(
    mode: AbstractContextManager[object],
) -> None:
    inputs = torch.randn(8, 3), torch.randn(8, 5)
    statistics = BatchStatistics()
    with PatchStack() as patches, mode:
        patch_batch_norm(patches)
        with statistics.recording():
            expected = [F.batch_norm(x, None, None, training=True) for x in inputs]
        with statistics.repeated():
            found = [F.batch_norm(x[:4], None, None, training=True) for x in inputs]
    torch.testing.assert_close(found, [x[:4] for x in expected])
