"""A slice of a batch, or of a sequence, need not use the parameters that another one does."""

import pytest
from idioms.comparison import compare_whole_batches, run_both
from idioms.idiom import idiom
from idioms.sequences import GPT, OPT, TEXTS, TRAIN
from idioms.sources import step
from idioms.tables.models import IDIOMS

ROUTED = next(each for each in IDIOMS if each.name == "parameters used for some samples")

OF_NO_EXPERT = """
class Routed(nn.Module):
    '''The first samples of a batch go to no expert.'''
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 4) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(4))
    def forward(self, x):
        out = torch.zeros(len(x), 4)
        for i, expert in enumerate(self.experts):
            rows = x[:, 0] == i
            if rows.any():
                out = out.index_put((rows,), expert(x[rows]))
        return out
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.routed, self.head = Routed(), nn.Linear(4, 4)
    def forward(self, x):
        return self.head(self.routed(x))
model = Model()
x = torch.randn(12, 8)
x[:, 0] = torch.tensor([2, 2, 2, 0, 1, 0] * 2)
dataset = TensorDataset(x, torch.randint(0, 4, (12,)))
loader = DataLoader(dataset, batch_size=6)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
"""

OF_SOME_POSITIONS = f"""
{TEXTS}
ids[:, 0] = 4
ids[:, 1:] = ids[:, 1:].clamp(5)
{GPT}
class Shifted(Block):
    def __init__(self, *args):
        super().__init__(*args)
        self.shift = nn.Parameter(torch.zeros(16))
    def forward(self, x):
        rows = x[:, :, :1] > 9
        return super().forward(x + self.shift * rows if rows.any() else x)
Block, Plain = Shifted, Block
model = GPT()
model.tokens.weight.data[4, 0] = 20.0
{OPT}"""
"""Each sequence begins with the one token that a parameter is for."""


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp"])
def test_samples_that_go_to_other_experts(strategy: str) -> None:
    compare_whole_batches(ROUTED, strategy=strategy, exact="always").assert_equal()


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp"])
def test_samples_that_go_to_no_expert(strategy: str) -> None:
    cell = idiom("none", step("loss = F.cross_entropy(model(x), y)"), setup=OF_NO_EXPERT)
    compare_whole_batches(cell, strategy=strategy, exact="always").assert_equal()


@pytest.mark.parametrize("strategy", ["tp"])
def test_positions_that_use_other_parameters(strategy: str) -> None:
    result = run_both(TRAIN, OF_SOME_POSITIONS, strategy=strategy, sequence_parallel=True)
    result.assert_equal()
