"""dp: one process; without several GPUs it is one device, and gives a notice."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch
from idioms.comparison import assert_equal
from idioms.idiom import TRAIN, Idiom, idiom
from idioms.notebook import notebook
from idioms.sources import BATCH_NORM, CLOSURE, DROPOUT
from test_mp import LIGHTNING
from transformers.modeling_outputs import SequenceClassifierOutput

import nbmgpu
from nbmgpu.errors import OptionError, StrategyError
from nbmgpu.strategies import dp

CPU = torch.device("cpu")

CASES = [
    idiom("SGD"),
    idiom("dropout", setup=DROPOUT),
    idiom("batch normalization", setup=BATCH_NORM),
    idiom("LBFGS", CLOSURE, setup="opt = torch.optim.LBFGS(model.parameters(), max_iter=3)",
        rank_local="closure", curve=False),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_dp_on_cpu_is_one_device_and_is_noticed(case: Idiom) -> None:
    result = assert_equal(case, notices="data-parallel", strategy="dp")
    assert result.error == 0
    text = result.run.view.notices["data-parallel"].text
    assert "nothing is parallel" in text
    assert "ddp is nearly always better" in text
    assert result.run.record.world_size == 1


def test_the_model_keeps_its_type() -> None:
    namespace = notebook()
    model = namespace["model"]
    cell = TRAIN + "kind, own = type(model).__name__, 'forward' in vars(model)\n"
    nbmgpu.run(cell, namespace, gpus=2, cpu=True, strategy="dp")
    assert namespace["model"] is model
    assert (namespace["kind"], namespace["own"]) == ("Net", False)


def test_sync_batchnorm_is_refused() -> None:
    with pytest.raises(OptionError, match="--sync-batchnorm"):
        nbmgpu.run(TRAIN, notebook(), gpus=2, cpu=True, strategy="dp", sync_batchnorm=True)


def test_lightning_is_refused() -> None:
    with pytest.raises(StrategyError, match="dp does not run Lightning's Trainer: it calls parts"):
        nbmgpu.run(LIGHTNING, notebook(), gpus=2, cpu=True, strategy="dp")


Pair = namedtuple("Pair", "logits mask")


def test_outputs_are_gathered() -> None:
    a, b = torch.randn(3, 2), torch.randn(1, 2)
    joined = dp.gather([(a, [a.sum()], None), (b, [b.sum()], None)], [3, 1], CPU)
    assert torch.equal(joined[0], torch.cat([a, b]))
    assert torch.allclose(joined[1][0], (3 * a.sum() + b.sum()) / 4)
    assert joined[2] is None
    pair = dp.gather([Pair(a, a > 0), Pair(b, b > 0)], [3, 1], CPU)
    assert torch.equal(pair.mask, torch.cat([a, b]) > 0)


def test_outputs_of_transformers_are_gathered() -> None:
    parts = [SequenceClassifierOutput(loss=torch.tensor(1.0), logits=torch.ones(3, 2)),
             SequenceClassifierOutput(loss=torch.tensor(3.0), logits=torch.ones(1, 2))]  # fmt: skip
    joined = dp.gather(parts, [3, 1], CPU)
    assert isinstance(joined, SequenceClassifierOutput)
    assert joined.loss == 1.5
    assert joined.logits.shape == (4, 2)
