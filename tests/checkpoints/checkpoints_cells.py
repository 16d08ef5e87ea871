"""Cells with all kinds of loops: source, earlier cells, and options."""

from __future__ import annotations

from typing import Any

NOISY = """
class Noisy(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, i):
        return X[i] + 0.1 * torch.randn(16), Y[i]
"""

BATCHES = """
for epoch in range(3):
    for x, y in loader:
        step(x, y)
"""

CELLS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "nested functions": (
        "history.extend(Fit().run(3))",
        """
        def one_epoch(loader):
            count = 0
            for x, y in loader:
                step(x, y)
                count += 1
            return count

        class Fit:
            def __init__(self):
                self.best = 1e9

            def run(self, epochs):
                counts = []
                for epoch in range(epochs):
                    counts.append(one_epoch(loader))
                    if meter.values[-1] < self.best:
                        self.best = meter.values[-1]
                return counts
        """,
        {},
    ),
    "workers that draw": (
        BATCHES, NOISY + "loader = DataLoader(Noisy(), 16, shuffle=True, num_workers=2)", {},
    ),
    "samples that draw": (BATCHES, NOISY + "loader = DataLoader(Noisy(), 16, shuffle=True)", {}),
    "evaluation": (
        """
        for epoch in range(3):
            model.train()
            for x, y in loader:
                step(x, y)
            model.eval()
            correct = 0
            with torch.no_grad():
                for x, y in val:
                    correct += (model(x).argmax(1) == y).sum().item()
            history.append(correct)
        """,
        "val = DataLoader(TensorDataset(X[:50], Y[:50]), 16, shuffle=True)",
        {},
    ),
    "several loops": (
        """
        layers = []
        for width in (64, 32):
            layers += [nn.Linear(16 if not layers else 64, width), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Linear(32, 4))
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad(); loss.backward(); opt.step(); meter.add(loss.item())
        history.append(f"{loss.item():.3f}")
        for epoch in range(2):
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                opt.zero_grad(); loss.backward(); opt.step(); meter.add(loss.item())
        """,
        "",
        {},
    ),
    "a function called twice": (
        "first = fit(1, 1e-2)\nsecond = fit(2, 1e-3)\nhistory.extend(first + second)",
        """
        def fit(epochs, rate):
            counts = []
            for group in opt.param_groups:
                group["lr"] = rate
            for epoch in range(epochs):
                for x, y in loader:
                    step(x, y)
                counts.append(len(meter.values))
            return counts
        """,
        {},
    ),
    "a function called by map": (
        "history.extend(map(one_epoch, range(3)))",
        """
        def one_epoch(number):
            for x, y in loader:
                step(x, y)
            return number
        """,
        {},
    ),
    "a function of the cell": (
        """
        def train(epochs):
            for epoch in range(epochs):
                for x, y in loader:
                    step(x, y)
            return epoch
        history.append(train(3))
        """,
        "",
        {},
    ),
    "a decorated function": (
        "fit(3)",
        """
        import functools

        def logged(function):
            @functools.wraps(function)
            def call(*args):
                return function(*args)
            return call

        @logged
        def fit(epochs):
            for epoch in range(epochs):
                for x, y in loader:
                    step(x, y)
        """,
        {},
    ),
    "while": (
        """
        while len(meter.values) < 39:
            for x, y in loader:
                step(x, y)
            history.append(len(meter.values))
        """,
        "",
        {},
    ),
    "batches drawn by the cell": (
        """
        while len(meter.values) < 39:
            rows = torch.randint(0, 200, (16,))
            step(X[rows], Y[rows])
        """,
        "",
        {"exact": "always"},
    ),
    "two loaders": (
        """
        for epoch in range(3):
            for (x, y), (x2, y2) in zip(loader, loader):
                step(x, y)
        """,
        "",
        {},
    ),
    "an iterator before the loop": (
        """
        batches = iter(loader)
        for number in range(12):
            x, y = next(batches)
            step(x, y)
        """,
        "",
        {"every": "5steps", "fail_at": 8},
    ),
    "a generator": (
        """
        for number, (x, y) in zip(range(39), cycle(loader)):
            step(x, y)
        """,
        """
        def cycle(loader):
            while True:
                for batch in loader:
                    yield batch
        """,
        {},
    ),
    "tqdm": (
        """
        from tqdm.auto import tqdm, trange
        for epoch in trange(3):
            bar = tqdm(loader)
            for x, y in bar:
                step(x, y)
        """,
        "",
        {},
    ),
    "accumulated gradients": (
        """
        for epoch in range(3):
            for i, (x, y) in enumerate(loader):
                loss = F.cross_entropy(model(x), y) / 2
                loss.backward()
                if i % 2:
                    opt.step()
                    opt.zero_grad()
                meter.add(loss.item())
        """,
        "",
        {},
    ),
    "batch norm and the best model": (
        """
        model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4))
        opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=39)
        best = None
        for epoch in range(3):
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                opt.zero_grad(); loss.backward(); opt.step(); schedule.step()
                if best is None or loss.item() < best[0]:
                    best = loss.item(), {k: v.clone() for k, v in model.state_dict().items()}
                meter.add(loss.item())
            history.append(schedule.get_last_lr())
        """,
        "",
        {"exact": "always"},
    ),
    "layers unfrozen and counters in a module": (
        """
        for epoch in range(3):
            if epoch == 1:
                model.first.requires_grad_(True)
                model.scale = 0.5
            for x, y in loader:
                step(x, y)
            history.append(model.seen)
        """,
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.last = nn.Linear(16, 64), nn.Linear(64, 4)
                self.seen, self.scale = 0, 1.0

            def forward(self, x):
                self.seen += 1
                return self.last(torch.relu(self.first(x))) * (self.scale + 0.01 * self.seen)

        model = Net()
        model.first.requires_grad_(False)
        opt = torch.optim.Adam(model.parameters(), lr=1e-2)
        """,
        {},
    ),
    "after some time": (
        """
        import time
        for epoch in range(3):
            for x, y in loader:
                time.sleep(0.06)
                step(x, y)
        """,
        "",
        {"every": "1s"},
    ),
}  # fmt: skip
"""By name; each begins with the names of ``interrupted.NOTEBOOK``."""
