"""Cells whose samples interact, draw random numbers together, are counted, chosen or indexed.

On ranks, they have the numbers of one device under ``--exact always``.
"""

from __future__ import annotations

import textwrap

from .idiom import TRAIN, Idiom, idiom


def model(
    source: str, optimizer: str = "torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)"
) -> str:
    """Return a setup that makes ``model`` of a sequence of layers, and its optimizer."""
    return f"model = {source}\nopt = {optimizer}\n"


def train(loss: str, before: str = "pass", after: str = "pass") -> str:
    """Return a training loop whose loss is ``loss``."""
    return f"""
for epoch in range(2):
    for x, y in loader:
        {before}
        opt.zero_grad()
        loss = {loss}
        loss.backward()
        opt.step()
        {after}
        losses.append(loss.item())
"""


MLP = "nn.Sequential(nn.Linear(8, 16), {}, nn.Linear(16, 4))"
CONV = """nn.Sequential(
    nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 6, 3, padding=1), {}, nn.ReLU(), nn.Flatten(),
    nn.Linear(24, 4),
)"""

LAYERS = {
    "dropout": MLP.format("nn.Dropout(0.3)"),
    "alpha dropout": MLP.format("nn.AlphaDropout(0.3)"),
    "dropout in place": MLP.format("nn.Dropout(0.3, inplace=True)"),
    "dropout of channels": CONV.format("nn.Dropout2d(0.4)"),
    "randomized leaky ReLU": MLP.format("nn.RReLU()"),
    "batch norm": MLP.format("nn.BatchNorm1d(16)"),
    "batch norm, cumulative": MLP.format("nn.BatchNorm1d(16, momentum=None)"),
    "batch norm without statistics": MLP.format("nn.BatchNorm1d(16, track_running_stats=False)"),
    "batch norm without weights": MLP.format("nn.BatchNorm1d(16, affine=False)"),
    "batch norm of images": CONV.format("nn.BatchNorm2d(6)"),
    "batch norm and dropout of images": CONV.format("nn.BatchNorm2d(6), nn.Dropout2d(0.2)"),
    "batch norm, channels last": (
        CONV.format("nn.BatchNorm2d(6)") + ".to(memory_format=torch.channels_last)"
    ),
    "batch norm of volumes": (
        "nn.Sequential(nn.Unflatten(1, (2, 2, 2, 1)), nn.Conv3d(2, 6, 1), nn.BatchNorm3d(6), "
        "nn.Flatten(), nn.Linear(24, 4))"
    ),
    "group norm": CONV.format("nn.GroupNorm(2, 6)"),
    "instance norm": CONV.format("nn.InstanceNorm2d(6, affine=True, track_running_stats=True)"),
    "spectral norm": "nn.Sequential(nn.utils.spectral_norm(nn.Linear(8, 16)), nn.Linear(16, 4))",
    "parametrized spectral norm": (
        "nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 16)), nn.Linear(16, 4))"
    ),
}

MODULES = {
    "LSTM with dropout, batch first": """
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(2, 6, 2, batch_first=True, dropout=0.2)
            self.head = nn.Linear(6, 4)

        def forward(self, x):
            _, (h, _) = self.rnn(x.view(-1, 4, 2))
            return self.head(h[-1])
    """,
    "GRU, time first": """
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(2, 6)
            self.head = nn.Linear(6, 4)

        def forward(self, x):
            out, h = self.rnn(x.view(-1, 4, 2).transpose(0, 1))
            return self.head(out[-1] + h[0])
    """,
    "transformer with dropout": """
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(2, 8)
            self.layers = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True), 2)
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            return self.head(self.layers(self.embed(x.view(-1, 4, 2))).mean(1))
    """,
    "transformer, time first, with a mask": """
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(2, 8)
            self.layers = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1), 2,
                enable_nested_tensor=False)
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            steps = self.embed(x.view(-1, 4, 2)).transpose(0, 1)
            mask = nn.Transformer.generate_square_subsequent_mask(4)
            return self.head(self.layers(steps, mask=mask)[-1])
    """,
    "attention weights with dropout": """
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)
            self.embed = nn.Linear(2, 8)
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            steps = self.embed(x.view(-1, 4, 2))
            out, weights = self.attention(steps, steps, steps)
            return self.head(out.mean(1)) + weights.mean()
    """,
    "noise in the layers": """
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(8, 12), nn.Linear(12, 4)

        def forward(self, x):
            h = self.body(x) + 0.1 * torch.randn(len(x), 12)
            h = h * torch.empty_like(h).uniform_(0.5, 1.5)
            return self.head(F.gumbel_softmax(h, tau=2.0))
    """,
    "stochastic depth by sample": """
        def __init__(self):
            super().__init__()
            self.body = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            for layer in self.body:
                keep = torch.bernoulli(torch.full((x.shape[0], 1), 0.7))
                x = x + torch.tanh(layer(x)) * keep / 0.7
            return self.head(x)
    """,
    "stochastic depth by batch": """
        def __init__(self):
            super().__init__()
            self.body = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            for layer in self.body:
                if random.random() < 0.7:
                    x = x + F.dropout(torch.tanh(layer(x)), 0.2, self.training)
            return self.head(x)
    """,
    "checkpointed layers with dropout": """
        def __init__(self):
            super().__init__()
            self.body = nn.ModuleList(
                nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Tanh()) for _ in range(2))
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            from torch.utils.checkpoint import checkpoint
            for layer in self.body:
                x = checkpoint(layer, x, use_reentrant=False)
            return self.head(x)
    """,
    "features centred over the batch": """
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(8, 12), nn.Linear(12, 4)

        def forward(self, x):
            h = self.body(x)
            return self.head((h - h.mean(0)) / (h.std(0) + 1))
    """,
    "a loss inside of the model": """
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 12), nn.Dropout(0.2))
            self.head = nn.Linear(12, 4)

        def forward(self, x, y=None):
            logits = self.head(torch.tanh(self.body(x)))
            self.loss = 0 if y is None else F.cross_entropy(logits, y)
            return logits
    """,
    "a penalty that is the same for all samples": """
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(8, 12), nn.Linear(12, 4)
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, x):
            penalty = self.body.weight.square().mean()
            return self.head(torch.tanh(self.body(x))) * self.scale.prod() + penalty
    """,
    "a mixture of experts": """
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(8, 3)
            self.experts = nn.ModuleList(nn.Linear(8, 4) for _ in range(3))

        def forward(self, x):
            gates = self.gate(x).softmax(1)
            best = gates.argmax(1)
            out = torch.zeros(len(x), 4)
            for number, expert in enumerate(self.experts):
                chosen = best == number
                out[chosen] = expert(x[chosen]) * gates[chosen, number, None]
            self.balance = (F.one_hot(best, 3).float().mean(0) * gates.mean(0)).sum()
            return out
    """,
    "a codebook with moving averages": """
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(8, 6), nn.Linear(6, 4)
            self.register_buffer("codes", torch.randn(5, 6))

        def forward(self, x):
            z = torch.tanh(self.body(x))
            nearest = torch.cdist(z, self.codes).argmin(1)
            if self.training:
                with torch.no_grad():
                    hot = F.one_hot(nearest, 5).float()
                    means = hot.T @ z / hot.sum(0).clamp(min=1)[:, None]
                    self.codes.lerp_(means, 0.1)
            return self.head(z + (self.codes[nearest] - z).detach())
    """,
    "fake quantization": """
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(8, 12), nn.Linear(12, 4)
            self.register_buffer("largest", torch.tensor(0.0))

        def forward(self, x):
            h = torch.tanh(self.body(x))
            if self.training:
                self.largest.copy_(torch.maximum(0.9 * self.largest, h.detach().abs().max()))
            scale = self.largest / 127
            return self.head(h + ((h / scale).round() * scale - h).detach())
    """,
}

GRAPH = """
class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x, edges):
        messages = torch.zeros_like(x).index_add_(0, edges[1], x[edges[0]])
        return self.head(torch.tanh(self.body(x + messages)))

model = Graph()
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
"""

GAN = """
G = nn.Sequential(nn.Linear(3, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 8))
D = nn.Sequential(nn.utils.spectral_norm(nn.Linear(8, 12)), nn.LeakyReLU(), nn.Linear(12, 1))
model, opt_d = G, torch.optim.SGD(D.parameters(), lr=0.05, momentum=0.9)
opt = torch.optim.SGD(G.parameters(), lr=0.05, momentum=0.9)
"""

GAN_STEPS = """
for x, y in loader:
    fake = G(torch.randn(len(x), 3))
    opt_d.zero_grad()
    mix = torch.rand(len(x), 1)
    mixed = (mix * x + (1 - mix) * fake.detach()).requires_grad_()
    slope, = torch.autograd.grad(D(mixed).sum(), mixed, create_graph=True)
    penalty = 10 * ((slope.norm(dim=1) - 1) ** 2).mean()
    loss = F.softplus(-D(x)).mean() + F.softplus(D(fake.detach())).mean() + penalty
    loss.backward()
    opt_d.step()
    opt.zero_grad()
    of_g = F.softplus(-D(fake)).mean()
    of_g.backward()
    opt.step()
    losses.append(loss.item())
"""

TWO_VIEWS = """
for x, y in loader:
    opt.zero_grad()
    a, b = (model(x + 0.1 * torch.randn_like(x)) for _ in range(2))
    loss = {}
    loss.backward()
    opt.step()
    losses.append(loss.item())
"""

SIMCLR = """
def contrast(a, b):
    z = F.normalize(torch.cat([a, b]), dim=1)
    scores = (z @ z.T / 0.5).masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
    return F.cross_entropy(scores, torch.arange(len(z)).roll(len(a)))
"""

VICREG = """
def contrast(a, b):
    spread = sum(F.relu(1 - z.std(0)).mean() for z in (a, b))
    cov = torch.cov(a.T).triu(1).square().sum() + torch.cov(b.T).triu(1).square().sum()
    return F.mse_loss(a, b) + spread + 0.1 * cov
"""

TEACHER = "teacher = copy.deepcopy(model)\n"
EMA = """
for p, q in zip(teacher.parameters(), model.parameters()):
    p.data.lerp_(q.data, 0.1)
"""

VAE = """
class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 6), nn.Linear(3, 8)

    def forward(self, x):
        mean, log = self.encoder(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (log / 2).exp()
        return {"out": self.decoder(z), "mean": mean, "log": log}

model = VAE()
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
"""

LOSSES: dict[str, tuple[str, str]] = {
    "VAE with a dict": (
        """
for x, y in loader:
    opt.zero_grad()
    found = model(x)
    kl = -0.5 * (1 + found["log"] - found["mean"] ** 2 - found["log"].exp()).sum(1).mean()
    loss = F.mse_loss(found["out"], x, reduction="sum") / len(x) + kl
    loss.backward()
    opt.step()
    losses.append(loss.item())
""",
        VAE,
    ),
    "graph network": (
        train(
            "F.cross_entropy(model(x, torch.stack([torch.arange(len(x)), "
            "torch.arange(len(x)).roll(1)])), y)"
        ),
        GRAPH,
    ),
    "GAN with spectral norm and a gradient penalty": (GAN_STEPS, GAN),
    "SimCLR": (TWO_VIEWS.format("contrast(a, b)"), SIMCLR + model(LAYERS["batch norm"])),
    "VICReg": (TWO_VIEWS.format("contrast(a, b)"), VICREG + model(LAYERS["dropout"])),
    "MoCo with a queue": (
        """
queue = F.normalize(torch.randn(16, 4), dim=1)
for x, y in loader:
    opt.zero_grad()
    q = F.normalize(model(x), dim=1)
    with torch.no_grad():
        k = F.normalize(teacher(x + 0.1 * torch.randn_like(x)), dim=1)
    scores = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], 1) / 0.2
    loss = F.cross_entropy(scores, torch.zeros(len(x), dtype=torch.long))
    loss.backward()
    opt.step()
    queue = torch.cat([queue, k])[-16:]
    losses.append(loss.item())
"""
        + EMA,
        model(LAYERS["batch norm"]) + TEACHER,
    ),
    "DINO with a centre": (
        """
centre = torch.zeros(4)
for x, y in loader:
    opt.zero_grad()
    with torch.no_grad():
        target = teacher(x)
        probabilities = ((target - centre) / 0.1).softmax(1)
        centre = 0.9 * centre + 0.1 * target.mean(0)
    loss = -(probabilities * model(x + 0.1 * torch.randn_like(x)).log_softmax(1)).sum(1).mean()
    loss.backward()
    opt.step()
    losses.append(loss.item())
"""
        + EMA,
        model(LAYERS["dropout"]) + TEACHER,
    ),
    "Mean Teacher": (
        train(
            "F.cross_entropy(model(x)[: len(x) // 2], y[: len(x) // 2]) "
            "+ F.mse_loss(model(x), teacher(x).detach())",
            after="[p.data.lerp_(q.data, 0.1) for p, q in "
            "zip(teacher.parameters(), model.parameters())]",
        ),
        model(LAYERS["dropout"]) + TEACHER,
    ),
    "mixup": (
        train(
            "(a * F.cross_entropy(out := model(a * x + (1 - a) * x[p]), y) "
            "+ (1 - a) * F.cross_entropy(out, y[p]))",
            before="a, p = np.random.beta(0.4, 0.4), torch.randperm(len(x))",
        ),
        model(LAYERS["batch norm"]),
    ),
    "CutMix": (
        train(
            "F.cross_entropy(model(torch.cat([x[:, :cut], x[p][:, cut:]], 1)), y)",
            before="cut, p = random.randint(2, 6), torch.randperm(len(x))",
        ),
        model(LAYERS["dropout"]),
    ),
    "hard examples": (
        train("F.cross_entropy(model(x), y, reduction='none').topk(len(x) // 2).values.mean()"),
        model(LAYERS["batch norm"]),
    ),
    "a transform along the batch": (
        train("torch.fft.fft(model(x), dim=0).abs().mean()"),
        model(LAYERS["dropout"]),
    ),
    "triplets from the batch": (
        train(
            "F.relu(1 + (d := torch.cdist(z := model(x), z) + 0.01 * z.square().sum())"
            ".masked_fill(y[:, None] != y, -1e9).amax(1) "
            "- d.masked_fill(y[:, None] == y, 1e9).amin(1)).mean()"
        ),
        model(LAYERS["dropout"]),
    ),
    "in-batch negatives of two towers": (
        """
for x, y in loader:
    opt.zero_grad()
    scores = F.normalize(users(x), dim=1) @ F.normalize(items(Items[y]), dim=1).T
    loss = F.cross_entropy(scores / 0.5, torch.arange(len(x)))
    loss.backward()
    opt.step()
    losses.append(loss.item())
""",
        "users, items = Net(), nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2))\n"
        "Items, model = torch.randn(4, 3), users\n"
        "opt = torch.optim.Adam([*users.parameters(), *items.parameters()], lr=0.01)\n",
    ),
    "Dice of the batch": (
        train(
            "1 - 2 * ((p := model(x).softmax(1)) * (h := F.one_hot(y, 4))).sum() "
            "/ (p.sum() + h.sum())"
        ),
        model(LAYERS["batch norm of images"]),
    ),
    "normalized advantages": (
        train(
            "-(model(x).log_softmax(1).gather(1, y[:, None])[:, 0] * (a - a.mean()) / a.std())"
            ".mean()",
            before="a = x.sum(1)",
        ),
        model(LAYERS["dropout"]),
    ),
    "PPO in minibatches of a permutation": (
        """
for epoch in range(3):
    order = torch.randperm(len(X))
    for rows in order.split(8):
        opt.zero_grad()
        new = model(X[rows]).log_softmax(1).gather(1, Y[rows, None])[:, 0]
        ratio, a = (new - old[rows]).exp(), X[rows].sum(1)
        loss = -torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
        loss.backward()
        opt.step()
        losses.append(loss.item())
""",
        model(LAYERS["dropout"])
        + "old = model(X).log_softmax(1).gather(1, Y[:, None])[:, 0].detach()\n",
    ),
    "CTC": (
        train(
            "F.ctc_loss(model(x).view(-1, 4, 4).log_softmax(2).transpose(0, 1), "
            "y[:, None].clamp(min=1), torch.full((len(x),), 4), torch.ones(len(x)).long())"
        ),
        model("nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 16))"),
    ),
    "accuracy and early stopping by a metric": (
        """
best, seen, hits = 0.0, 0, 0
for epoch in range(6):
    for x, y in loader:
        opt.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        opt.step()
        hits += (out.argmax(1) == y).sum().item()
        seen += len(x)
        losses.append(loss.item())
    if hits / seen <= best:
        break
    best = hits / seen
""",
        model(LAYERS["dropout"]),
    ),
    "a learning rate finder": (
        """
rate, best = 1e-3, float("inf")
for x, y in loader:
    for group in opt.param_groups:
        group["lr"] = rate
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    best = min(best, loss.item())
    if loss.item() > 4 * best:
        break
    loss.backward()
    opt.step()
    losses.append(loss.item())
    rate *= 2
""",
        model(LAYERS["batch norm"]),
    ),
    "a balance loss inside of experts": (
        train("F.cross_entropy(model(x), y) + 0.1 * model.balance"),
        "experts",
    ),
    "adversarial examples": (
        """
for x, y in loader:
    x.requires_grad_()
    slope, = torch.autograd.grad(F.cross_entropy(model(x), y), x)
    opt.zero_grad()
    loss = F.cross_entropy(model((x + 0.1 * slope.sign()).detach()), y)
    loss.backward()
    opt.step()
    losses.append(loss.item())
""",
        model(LAYERS["batch norm"]),
    ),
    "gradients over several batches": (
        """
for number, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y) / 2
    loss.backward()
    if number % 2:
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()
        opt.zero_grad()
    losses.append(loss.item())
""",
        model(LAYERS["batch norm and dropout of images"]),
    ),
    "a frozen backbone with batch norm": (
        train("F.cross_entropy(head(model(x)), y)", before="head.train(); model.eval()"),
        model(LAYERS["batch norm"], "None")
        + "[p.requires_grad_(False) for p in model.parameters()]\n"
        "head = nn.Sequential(nn.Dropout(0.2), nn.Linear(4, 4))\n"
        "opt = torch.optim.Adam(head.parameters(), lr=0.01)\n",
    ),
    "evaluation between epochs": (
        """
for epoch in range(2):
    model.train()
    for x, y in loader:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        scores = [F.cross_entropy(model(x), y).item() for x, y in val_loader]
""",
        model(LAYERS["batch norm and dropout of images"]),
    ),
    "a hook that keeps activations": (
        train("F.cross_entropy(model(x), y) + 0.01 * kept[-1].std(0).sum()"),
        model(LAYERS["dropout"])
        + "kept = []\nmodel[1].register_forward_hook(lambda m, a, o: kept.append(o))\n",
    ),
    "halves of a batch": (
        train("F.cross_entropy((o := model(x))[:4], y[:4]) + o[4:].square().mean()"),
        model(LAYERS["batch norm"]),
    ),
    "a default device": (
        "with next(model.parameters()).device:" + textwrap.indent(TRAIN, "    "),
        model(LAYERS["batch norm and dropout of images"]),
    ),
    "bf16 autocast": (
        """
for x, y in loader:
    opt.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    losses.append(loss.item())
""",
        model("Net()", "torch.optim.SGD(model.parameters(), lr=0.01)"),
    ),
}

SPECIAL = {
    "a loss inside of the model": train("(model(x, y), model.loss)[1]"),
}


def _cells() -> list[Idiom]:
    cells = [idiom(name, TRAIN, setup=model(source)) for name, source in LAYERS.items()]
    for name, body in MODULES.items():
        setup = f"class Model(nn.Module):{body}\n" + model("Model()")
        cells.append(idiom(name, SPECIAL.get(name, TRAIN), setup=_flat(setup)))
    experts = next(cell.setup for cell in cells if cell.name == "a mixture of experts")
    for name, (cell, setup) in LOSSES.items():
        rounding = {"rtol": 2e-2, "atol": 2e-3} if "bf16" in name else {}
        before = experts if setup == "experts" else setup
        cells.append(idiom(name, cell, setup=before, **rounding))
    return cells


def meeting_late(body: str, before: str = "") -> str:
    """Return a setup whose model has samples that meet only in some later batch.

    Args:
        body: computes the hidden units ``h`` of later layers from ``x`` and ``h``.
        before: a statement of ``__init__``.
    """
    return f"""
class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 12), nn.Linear(12, 4)
        {before or "pass"}

    def forward(self, x):
        h = self.a(x)
{textwrap.indent(textwrap.dedent(body).strip(), " " * 8)}
        return self.b(h)

X[16:, 0] = X[16:, 0].abs() + 3  # the first two batches are those of the trial
X[:16, 0] = -X[:16, 0].abs()
""" + model("Late()")


LATE = {
    "a branch on a number of the batch": (
        TRAIN,
        meeting_late("""
            if x[:, 0].max() > 1:
                h = h - h.mean(0)
        """),
    ),
    "a branch after batch norms of other widths": (
        TRAIN,
        meeting_late(
            """
            h = self.norms[0](h) + self.norms[1](x).sum(1, True)
            if x[:, 0].max() > 1:
                h = h - h.mean(0)
            """,
            "self.norms = nn.ModuleList([nn.BatchNorm1d(12), nn.BatchNorm1d(8)])",
        ),
    ),
    "a loop until all samples are close": (
        TRAIN,
        meeting_late("""
            y = torch.ones_like(h)
            while not (y * y - 1 - h.abs()).abs().max() < 1e-2:
                y = (y + (1 + h.abs()) / y) / 2
            h = y
        """),
    ),
    "a threshold": (TRAIN, meeting_late("h = h - F.relu(x[:, 0].mean() - 1)")),
    "a comparison": (TRAIN, meeting_late("h = torch.where(x[:, 0].mean() > 1, h - h.mean(0), h)")),
    "a factor of zero until then": (
        TRAIN,
        meeting_late("h = h - h.mean(0) * (x[:, :1] > 1)"),
    ),
    "calls counted by the module": (
        TRAIN,
        meeting_late(
            """
            self.calls += 1
            if self.calls > 4:
                h = h - h.mean(0)
            """,
            "self.calls = 0",
        ),
    ),
    "calls counted in a list": (
        TRAIN,
        meeting_late(
            """
            self.calls.append(len(x))
            if len(self.calls) > 4:
                h = h - h.mean(0)
            """,
            "self.calls = []",
        ),
    ),
    "epochs counted by the cell": (
        "for model.epoch in range(9, 12):" + textwrap.indent(TRAIN, "    "),
        meeting_late(
            """
            if self.epoch > 10:
                h = h - h.mean(0)
            """,
            "self.epoch = 0",
        ),
    ),
}
"""Models whose samples interact where the batch, or the call, of a trial does not show it."""


SEEN = """
rows = []

class Seen(nn.Linear):
    def forward(self, x):
        rows.append(len(x))
        return super().forward(x)

model = nn.Sequential(Seen(8, 16), nn.Linear(16, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""
"""A model that lists the numbers of samples that it is called with."""


def _flat(setup: str) -> str:
    """Return a class whose body is indented by 8 columns with one of 4."""
    return "\n".join(
        line[4:] if line.startswith("        ") else line for line in setup.split("\n")
    )


CELLS = _cells()
