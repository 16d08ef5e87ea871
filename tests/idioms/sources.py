"""Models, data and loops that several idioms use, as sources of cells."""

from __future__ import annotations

from .idiom import TRAIN


def with_loss(expression: str) -> str:
    """Return ``TRAIN`` with another loss."""
    return TRAIN.replace("F.cross_entropy(model(x), y)", expression)


def with_loss_and_optimizer(
    expression: str, optimizer: str = "SGD(model.parameters(), lr=0.05)"
) -> str:
    """Return ``TRAIN`` with another loss, after making another optimizer."""
    return f"opt = torch.optim.{optimizer}\n{with_loss(expression)}"


def before_step(line: str, forward: str = "model(x)") -> str:
    """Return a loop of one epoch with ``line`` before each step."""
    return f"""
for x, y in loader:
    opt.zero_grad()
    loss = F.cross_entropy({forward}, y)
    loss.backward()
    {line}
    opt.step()
    losses.append(loss.item())
"""


def step(forward: str, *, loader: str = "x, y in loader") -> str:
    """Return a loop whose forward pass is ``forward``."""
    return f"""
for {loader}:
    opt.zero_grad()
    {forward}
    loss.backward()
    opt.step()
    losses.append(loss.item())
"""


# ------------------------------------------------------------------- loops

ACCUMULATE = """
for step, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y) / 2
    loss.backward()
    losses.append(loss.item())
    if step % 2:
        {clip}
        opt.step()
        opt.zero_grad()
"""
"""Steps after every second batch; ``clip`` is a line before the step."""

CLIP = "nn.utils.clip_grad_norm_(model.parameters(), 0.1)"

CLOSURE = """
for x, y in loader:
    def closure():
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss
    losses.append(opt.step(closure).item())
"""

INFERENCE = TRAIN.replace(
    "    for x",
    "    with torch.inference_mode(): losses.append(model.eval()(X).mean().item())\n"
    "    model.train()\n    for x",
)
"""Evaluates in inference mode before each epoch."""

GRADIENT_PENALTY = """
for x, y in loader:
    x.requires_grad_()
    loss = F.cross_entropy(model(x), y)
    grad, = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    loss = loss + 0.1 * (grad.norm(dim=1) - 1).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
"""

# ------------------------------------------------------------------- data

WEIGHTED = "loader = DataLoader(TensorDataset(X, Y, W), 7, shuffle=True)"
REGRESSION = "loader = DataLoader(TensorDataset(X, torch.randn(44, 4)), 7, shuffle=True)"
TOKENS = """
    ids = torch.randint(10, (44, 6))
    labels = ids.roll(-1, 1)
    lengths = torch.randint(1, 7, (44,))
    labels[torch.arange(6) >= lengths[:, None]] = -100
    model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 10))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(ids, labels), batch_size=8, shuffle=True)
"""
SEQUENCES = """
    sequences = torch.randn(44, 6, 8)
    lengths = torch.randint(1, 7, (44,))
    loader = DataLoader(TensorDataset(sequences, lengths, Y), batch_size=7, shuffle=True)
"""
AUGMENTED = """
class Noisy(Dataset):
    def __len__(self):
        return 44
    def __getitem__(self, i):
        return X[i] + {noise}, Y[i]

loader = DataLoader(Noisy(), batch_size=8)
"""
"""A loader whose samples draw ``noise``."""

# ------------------------------------------------------------------- models and optimizers

ADAM = "opt = torch.optim.AdamW(model.parameters(), lr=1e-2)\n"
DROPOUT = """
model = nn.Sequential(nn.Linear(8, 12), nn.Dropout(0.5), nn.Linear(12, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""
BATCH_NORM = """
model = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
"""
CONV = """
model = nn.Sequential(
    nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 6, 2, padding=1), nn.BatchNorm2d(6), nn.Tanh(),
    nn.Conv2d(6, 6, 2), nn.BatchNorm2d(6), nn.Tanh(), nn.Flatten(), nn.Linear(24, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
"""
BLOCKS = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x, scale=1.0):
        return x + scale * self.down(torch.tanh(self.up(x)))

class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.features(x))

    def features(self, x):
        for block in self.blocks:
            x = block(x, scale=0.5)
        return x

model = Deep()
opt = torch.optim.AdamW(model.parameters(), lr=1e-2, amsgrad=True)
"""
SOMETIMES = """
class Sometimes(Net):
    def __init__(self):
        super().__init__()
        self.extra = nn.Linear(4, 4)
    def forward(self, x, more):
        out = super().forward(x)
        return self.extra(out) if more else out
model = Sometimes()
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
"""
"""A model with parameters that only some steps use, as ``CHANGING`` does."""

CHANGING = with_loss("F.cross_entropy(model(x, len(losses) % 3 > 0), y)")

BERT = """
from transformers import BertConfig, BertForSequenceClassification
model = BertForSequenceClassification(BertConfig(
    vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
tokens = torch.randint(40, (22, 6))
loader = DataLoader(TensorDataset(tokens, Y[:22] % 2), batch_size=5)
"""
TRAIN_BERT = """
for x, y in loader:
    opt.zero_grad()
    loss = model(input_ids=x, labels=y).loss
    loss.backward()
    opt.step()
    losses.append(loss.item())
"""
