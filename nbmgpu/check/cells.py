"""Training cells as people write them, all on ``device``."""

from __future__ import annotations

from .comparison import Cell

MLP = """
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
model.to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
"""
TRANSFORMER = """
class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        return self.head(self.encoder(self.embed(ids), mask=mask, is_causal=True))

ids = torch.randint(1, 50, (36, 16))
for i, row in enumerate(ids):
    row[16 - i % 7 :] = 0  # padding
loader = DataLoader(ids, batch_size=8)
model = LanguageModel().to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
"""
"""With SGD: the gradient of a key's bias is zero but for rounding, and Adam would scale that up."""
STEP = """
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
"""
TRAIN = f"""
for x, y in loader:
    x, y = x.to(device), y.to(device)
    loss = F.cross_entropy(model(x), y){STEP}"""
LANGUAGE = f"""
for batch in loader:
    batch = batch.to(device)
    logits = model(batch[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), ignore_index=0){STEP}"""

CELLS = (
    Cell("an MLP, cross entropy, SGD", MLP, TRAIN, quick=True),
    Cell(
        "a conv net, AdamW",
        """
model = nn.Sequential(
    nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(),
    nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 4),
).to(device)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
""",
        TRAIN,
    ),
    Cell("a language model, padded, tied embeddings", TRANSFORMER, LANGUAGE, quick=True),
    Cell(
        "gradients accumulated and clipped, a scheduler",
        MLP + "scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 4)",
        """
for i, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x.to(device)), y.to(device)) / 2
    loss.backward()
    losses.append(loss.item())
    if i % 2:
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()
        opt.zero_grad()
        scheduler.step()
""",
        quick=True,
    ),
    Cell(
        "an evaluation after each epoch, the best weights kept",
        MLP,
        """
best, best_accuracy = None, -1.0
for epoch in range(2):
    model.train()
    for x, y in loader:
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        accuracy = (model(X.to(device)).argmax(1).cpu() == Y).float().mean().item()
    if accuracy > best_accuracy:
        best_accuracy, best = accuracy, [p.detach().clone() for p in model.parameters()]
""",
        ("model", "losses", "best", "best_accuracy"),
    ),
    Cell(
        "a frozen layer, two parameter groups",
        """
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
model.to(device)
model[0].requires_grad_(False)
opt = torch.optim.Adam(
    [{"params": model[2].parameters(), "lr": 1e-3}, {"params": model[4].parameters()}], lr=1e-2
)
""",
        TRAIN,
    ),
    Cell(
        "two models with an optimizer each",
        """
encoder = nn.Sequential(nn.Linear(16, 8), nn.Tanh()).to(device)
decoder = nn.Linear(8, 16).to(device)
first = torch.optim.Adam(encoder.parameters(), lr=1e-2)
second = torch.optim.SGD(decoder.parameters(), lr=1e-2)
""",
        """
for x, y in loader:
    x = x.to(device)
    loss = F.mse_loss(decoder(encoder(x)), x)
    first.zero_grad()
    second.zero_grad()
    loss.backward()
    first.step()
    second.step()
    losses.append(loss.item())
""",
        ("encoder", "decoder", "losses"),
    ),
    Cell(
        "a sum divided by the batch size",
        MLP,
        f"""
for x, y in loader:
    x, y = x.to(device), y.to(device)
    loss = F.cross_entropy(model(x), y, reduction="sum") / len(x){STEP}""",
    ),
    Cell(
        "an LSTM",
        """
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.lstm(x.view(-1, 4, 4))[0][:, -1])

model = Tagger().to(device)
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
""",
        TRAIN,
    ),
    Cell(
        "the data already on the device, shuffled",
        MLP + "loader = DataLoader(TensorDataset(X.to(device), Y.to(device)), 8, shuffle=True)",
        f"""
for x, y in loader:
    loss = F.cross_entropy(model(x), y){STEP}""",
    ),
    Cell(
        "the model moved and the optimizer made in the cell",
        "model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))",
        "model.to(device)\nopt = torch.optim.Adam(model.parameters(), lr=1e-2)\n" + TRAIN,
    ),
    Cell(
        "a moving average of the weights",
        MLP + "average = copy.deepcopy(model)",
        TRAIN
        + """
    with torch.no_grad():
        for a, p in zip(average.parameters(), model.parameters()):
            a.lerp_(p, 0.1)
""",
        ("model", "average", "losses"),
    ),
)
"""Cells for every strategy."""

BF16 = Cell(
    "autocast in bf16",
    MLP,
    f"""
for x, y in loader:
    with torch.autocast(device.type, torch.bfloat16):
        loss = F.cross_entropy(model(x.to(device)), y.to(device)){STEP}""",
    tolerance=2000,
)
FP16 = Cell(
    "autocast in fp16 with a GradScaler that skips a step",
    MLP
    + "X[17] = 1e30  # not finite in fp16, on one rank\nscaler = torch.amp.GradScaler(device.type)",
    """
for x, y in loader:
    with torch.autocast(device.type, torch.float16):
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
scale = scaler.get_scale()
""",
    ("model", "scale"),
    tolerance=300,
)
"""Cells in lower precision.  The tolerance is that of their dtype: 8 and 11 bits of precision."""

WHOLE_BATCH = (
    Cell(
        "dropout, and noise drawn in the cell",
        """
model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.3), nn.Tanh(), nn.Linear(32, 4)).to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
after = []
""",
        f"""
for x, y in loader:
    x, y = x.to(device), y.to(device)
    x = x + 0.1 * torch.randn_like(x)
    loss = F.cross_entropy(model(x), y){STEP}
after.append(torch.rand(3, device=device))
""",
        ("model", "losses", "after"),
        quick=True,
    ),
    Cell(
        "batch norm, channels last",
        """
model = nn.Sequential(
    nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
    nn.Flatten(), nn.Linear(128, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4),
).to(device, memory_format=torch.channels_last)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
""",
        TRAIN,
        tolerance=5.0,
    ),
    Cell(
        "a transformer with dropout",
        TRANSFORMER.replace("dropout=0.0", "dropout=0.1"),
        LANGUAGE,
        tolerance=5.0,
    ),
    Cell(
        "a contrastive loss of all pairs",
        MLP,
        f"""
for x, y in loader:
    x = x.to(device)
    a, b = (F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=1) for _ in range(2))
    loss = F.cross_entropy(a @ b.T / 0.5, torch.arange(len(x), device=device)){STEP}""",
    ),
)
"""Cells whose samples interact or draw random numbers together, for ``--exact always``."""
