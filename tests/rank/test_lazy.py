"""Lazy modules: refused while they have no shapes, trained as any others after."""

import pytest
from idioms.differences import difference
from idioms.idiom import TRAIN
from idioms.notebook import execute, notebook

import nbmgpu
from nbmgpu.errors import StrategyError

LAZY = """
model = nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.LazyLinear(4))
opt = torch.optim.SGD(model.parameters(), 0.1)
"""


def test_the_error_for_a_model_without_shapes_says_what_to_run():
    namespace = notebook(LAZY)
    with pytest.raises(StrategyError, match="lazy modules") as refused:
        nbmgpu.run(TRAIN, namespace, gpus=2, cpu=True)
    advised = str(refused.value).split("Try: ")[1].split(" once")[0]
    execute(advised, namespace)
    nbmgpu.run(TRAIN, namespace, gpus=2, cpu=True)
    alone = notebook(LAZY)
    execute(advised + "\n" + TRAIN, alone)
    assert difference(alone["model"], namespace["model"]) <= 1e-6
