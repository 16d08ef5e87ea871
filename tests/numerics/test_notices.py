"""What cannot be equal is said, each topic when it is due."""

from __future__ import annotations

import re
import textwrap

import pytest
from idiom import TRAIN, compare, idiom, notebook

import nbmgpu

DROPOUT = """
    model = nn.Sequential(nn.Linear(8, 12), nn.Dropout(0.5), nn.Linear(12, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""
BATCH_NORM = """
    model = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Linear(12, 4))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""
AUGMENTED = """
    class Noisy(Dataset):
        def __len__(self):
            return 44
        def __getitem__(self, i):
            return X[i] + {noise}, Y[i]

    loader = DataLoader(Noisy(), batch_size=8)
"""
CENTRED = """
    class Centred(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("centre", torch.zeros(8))

        def forward(self, x):
            out = super().forward({given})
            if self.training:
                {kept}
            return out

    model = Centred()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""
EVEN = "loader = DataLoader(dataset, 8, drop_last=True)"
CUT = """
    for x, y in loader:
        opt.zero_grad()
        for a, b in zip(x.split({size}), y.split({size})):
            (F.cross_entropy(model(a), b) / {pieces}).backward()
        opt.step()
"""
PADDED = """
    sequences = [torch.randn(1 + i % 7, 8) for i in range(44)]

    def collate(samples):
        sequences, ys = zip(*samples)
        return nn.utils.rnn.pad_sequence(sequences, batch_first=True), torch.stack(ys)

    loader = DataLoader(list(zip(sequences, Y)), 8, collate_fn=collate)
"""
RAGGED = """
    class Ragged(IterableDataset):
        def __iter__(self):
            for start in range(0, 40, 8):
                yield [(x, y) for x, y in zip(X[start:start + 8], Y[start:start + 8])]

    loader = DataLoader(Ragged(), batch_size=2, collate_fn=lambda batches: sum(batches, []))
"""


def with_loss(expression: str) -> str:
    return TRAIN.replace("F.cross_entropy(model(x), y)", expression)


DUE = {
    "dropout": ("random-step", TRAIN, DROPOUT),
    "noise in the step": ("random-step", with_loss(
        "F.cross_entropy(model(x + 0.1 * torch.randn_like(x)), y)"), ""),
    "noise from the second epoch on": ("random-step", with_loss(
        "F.cross_entropy(model(x) + (0.1 * torch.randn(len(x), 1) if epoch else 0), y)"), ""),
    "a coin tossed from the second epoch on": ("random-host", with_loss(
        "F.cross_entropy(model(x), y) * (random.random() if epoch else 1)"), ""),
    "batch normalisation": ("batch-norm", TRAIN, BATCH_NORM),
    "augmentation, torch": ("random-data", TRAIN, AUGMENTED.format(noise="torch.randn(8)")),
    "augmentation, numpy": ("random-data", TRAIN, AUGMENTED.format(
        noise="torch.from_numpy(np.random.randn(8)).float()")),
    "augmentation, random": ("random-data", TRAIN, AUGMENTED.format(noise="random.random()")),
    "augmentation in workers": ("random-data", TRAIN, AUGMENTED.replace(
        "=8", "=8, num_workers=1").format(noise="random.random()")),
    "a buffer that forward() replaces": ("buffers-apart", TRAIN, CENTRED.format(
        given="x", kept="self.centre = 0.9 * self.centre + 0.1 * x.mean(0)")),
    "a buffer that forward() writes into": ("averaged-buffer", TRAIN, CENTRED.format(
        given="x - self.centre", kept="self.centre.mul_(0.9).add_(0.1 * x.mean(0))")),
    "the gradient of a batch": ("own-gradient", """
        for x, y in loader:
            x.requires_grad_()
            F.cross_entropy(model(x), y).backward()
            near = x.detach() + 0.1 * x.grad
            opt.zero_grad()
            F.cross_entropy(model(near), y).backward()
            opt.step()
        """, ""),
    "the gradient of a perturbation, frozen model": ("own-gradient", """
        def attack(x, y):
            delta = torch.zeros_like(x, requires_grad=True)
            model.requires_grad_(False)
            F.cross_entropy(model(x + delta), y).backward()
            model.requires_grad_(True)
            return (x + delta.grad).detach()
        for x, y in loader:
            loss = F.cross_entropy(model(attack(x, y)), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, ""),
    "halves of a batch treated differently": ("by-place", with_loss(
        "F.cross_entropy(model(x[:len(x) // 2]), y[:len(x) // 2]) "
        "+ 0.1 * model(x[len(x) // 2:]).pow(2).mean()"), EVEN),
    "labelled samples first": ("by-place", with_loss(
        "F.cross_entropy((z := model(x))[:3], y[:3]) "
        "+ F.mse_loss(z.softmax(1), X.new_zeros(len(x), 4))"), EVEN),
    "ratios of classes": ("mixed-loss", with_loss(
        "1 - ((p := model(x).softmax(1)) * (t := F.one_hot(y, 4))).sum(0)"
        ".div((p + t).sum(0) + 1).mean()"), ""),
    "means over labels that are not missing": ("mixed-loss", with_loss(
        "(((out := model(x)) - 1).square() * (m := (x[:, :4] > 0).float())).sum(0)"
        ".div(m.sum(0).clamp(min=1)).mean()"), ""),
    "losses of two samples, added up": ("by-sample", with_loss(
        "sum(F.cross_entropy(model(a[None]), b[None]) for a, b in zip(x, y))"),
        "loader = DataLoader(dataset, 4)"),
    "a hook on what a layer gives": ("tensor-hooks", """
        for x, y in loader:
            h = torch.tanh(model.body(x))
            h.register_hook(lambda g: g.clamp(-0.01, 0.01))
            loss = F.cross_entropy(model.head(h), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, ""),
    "a mean and a sum": ("mixed-loss", with_loss(
        "F.cross_entropy(model(x), y) + 1e-3 * model(x).pow(2).sum()"), ""),
    "means over different counts": ("mixed-loss", with_loss(
        "F.cross_entropy(model(x), y) + F.cross_entropy(model(x), y, ignore_index=0)"), ""),
    "the root of a mean": ("mixed-loss", with_loss(
        "F.mse_loss(model(x)[:, 0], y.float()).sqrt()"), ""),
    "a ratio of sums": ("mixed-loss", with_loss(
        "1 - model(x).softmax(1)[:, 0].sum() / (1 + model(x).pow(2).sum())"), ""),
    "a sum / 4, the samples of a rank": ("by-chance", with_loss(
        "F.cross_entropy(model(x), y, reduction='sum') / 4"), "loader = DataLoader(dataset, 8, "
        "drop_last=True)"),
    "a sum / 4, once the samples of a rank": ("by-chance", with_loss(
        "F.cross_entropy(model(x), y, reduction='sum') / 4 + 0 * len(x)"), ""),
    "a norm over the batch": ("mixed-loss", with_loss("(model(x)[:, 0] - y).norm()"), ""),
    "a contrastive loss": ("coupled-batch", with_loss(
        "F.cross_entropy(model(x) @ model(x).T, torch.arange(len(x)))"), ""),
    "advantages normalised over the batch": ("coupled-batch", with_loss(
        "(model(x)[:, 0] * (y - y.float().mean())).mean()"), ""),
    "the first samples": ("part-of-batch", with_loss(
        "F.cross_entropy(model(x)[:2], y[:2])"), ""),
    "a mean over samples chosen before": ("chosen-mean", with_loss(
        "F.mse_loss(model(x[y > 0])[:, 0], y[y > 0].float())"), ""),
    "pieces of a fixed size, by a constant": ("in-pieces", CUT.format(size=2, pieces=4), EVEN),
    "pieces as large as a share, by a constant": (
        "in-pieces", CUT.format(size=4, pieces=2), EVEN),
    "twice the size of the batch": ("by-chance", with_loss(
        "F.cross_entropy(model(x), y, reduction='sum') / (2 * len(x))"), ""),
    "losses of single samples, added up": ("by-sample", with_loss(
        "sum(F.mse_loss(model(a), torch.ones(4)) for a in x)"), ""),
    "a sum and a penalty": ("summed-penalty", with_loss(
        "F.cross_entropy(model(x), y, reduction='sum') / 8 "
        "+ sum(p.pow(2).sum() for p in model.parameters())"), ""),
    "a sum over a variance that is a tensor": ("old-divisor", with_loss(
        "F.mse_loss(model(x)[:, 0], y.float(), reduction='sum') / variance"), "variance = X.var()"),
    "time first, summed over time": ("time-first", """
        for x, y in loader:
            out, h = rnn(x.transpose(0, 1))
            loss = ((out.sum(-1) - y.T) ** 2).sum(0).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, """
        rnn = nn.GRU(8, 5)
        opt = torch.optim.SGD(rnn.parameters(), lr=0.02)
        loader = DataLoader(TensorDataset(torch.randn(44, 6, 8), torch.randn(44, 6)), 8)
        """),
    "a sum and a penalty through a product": ("summed-penalty", with_loss(
        "F.cross_entropy(model(x), y, reduction='sum') / 8 "
        "+ (model.head.weight @ model.head.weight.T).square().sum()"), ""),
    "a mean times 3, or the samples of some ranks": ("by-chance", with_loss(
        "F.cross_entropy(model(x), y + 0 * x[:, 3].long()) * len(x) / 8"),
        "loader = DataLoader(dataset, 7)"),
    "a count that was a constant at first": ("late-count", """
        for x, y, m in loader:
            loss = F.cross_entropy(model(x)[m], y[m], reduction="sum") * 1.0
            (loss / max(1, 3 * len(m.nonzero()))).backward()
            opt.step()
        """, """
        M = torch.arange(44) % 4 == 0
        M[16:18] = True
        loader = DataLoader(TensorDataset(X, Y, M), 8)
        """),
    "a mean divided by the size of the batch": ("by-chance", with_loss(
        "F.cross_entropy(model(x), y) / len(x)"), ""),
    "a loss that does not tell how it reduces": ("unread-loss", with_loss(
        "Energy.apply(model(x))"), """
        class Energy(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x.square().mean()

            @staticmethod
            def backward(ctx, g):
                (x,) = ctx.saved_tensors
                return 2 * g * x / x.numel()
        """),
    "another model after batches taken by hand": ("random-step", """
        batches = iter(loader)
        for step in range(3):
            x, y = next(batches)
            F.cross_entropy(model(x), y).backward()
            opt.step()
        second = Net()
        opt2 = torch.optim.SGD(second.parameters(), lr=0.1)
        for x, y in loader:
            F.cross_entropy(second(x), y).backward()
            opt2.step()
        del batches
        """, ""),
    "something else after a batch taken by hand": ("same-batch", """
        batches = iter(loader)
        x, y = next(batches)
        for _ in range(3):
            opt.zero_grad()
            F.cross_entropy(model(X), Y, reduction="sum").backward()
            opt.step()
        del batches
        """, "opt = torch.optim.SGD(model.parameters(), lr=0.001)"),
    "padding that nothing masks": ("padded", with_loss(
        "F.cross_entropy(model(x).mean(1), y)"), PADDED),
    "frames of samples, joined": ("joined", with_loss("F.mse_loss(model(x)[:, 0], y)"), """
        clips = [(torch.randn(1 + i % 5, 8), torch.randn(1 + i % 5)) for i in range(44)]
        loader = DataLoader(clips, 8, collate_fn=lambda s: [torch.cat(c) for c in zip(*s)])
        """),
    "frames of samples, joined, beside their lengths": ("joined", """
        for x, y, lengths in loader:
            F.mse_loss(model(x)[:, 0], y).backward()
            opt.step()
        """, """
        clips = [(torch.randn(1 + i % 5, 8), torch.randn(1 + i % 5)) for i in range(44)]
        def collate(samples):
            x, y = (torch.cat(part) for part in zip(*samples))
            return x, y, torch.tensor([len(y) for _, y in samples])
        loader = DataLoader(clips, 8, collate_fn=collate)
        """),
    "frames of samples, joined in an object": ("joined", """
        for batch in loader:
            F.mse_loss(model(batch.x)[:, 0], batch.y).backward()
            opt.step()
        """, """
        class Graphs:
            def __init__(self, samples):
                self._store = {"x": None, "y": None}
                self._store["x"], self._store["y"] = (torch.cat(p) for p in zip(*samples))
            x, y = (property(lambda self, name=name: self._store[name]) for name in "xy")
        atoms = [(torch.randn(1 + i % 5, 8), torch.randn(1 + i % 5)) for i in range(44)]
        loader = DataLoader(atoms, 8, collate_fn=Graphs)
        """),
    "a number times the size of the batch, in a function": ("by-chance", with_loss(
        "likelihood(model(x)[:, 0], y.float())"), """
        def likelihood(mean, y, sigma=0.3):
            return ((mean - y) ** 2).sum() / (2 * sigma ** 2 * len(y))
        """),
    "a term over chosen samples, and one over all": ("mixed-loss", """
        for x, a, b in loader:
            out, has = model(x), a >= 0
            loss = F.cross_entropy(out[has], a[has]) + F.cross_entropy(out, b)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, """
        some = Y - (torch.arange(44) % 3 == 0).long() * 9
        loader = DataLoader(TensorDataset(X, some, Y.flip(0)), 8, drop_last=True)
        """),
    "packed words, and a term for each sample": ("mixed-loss", """
        for x, y, n in loader:
            out = model(x)
            pack = lambda t: nn.utils.rnn.pack_padded_sequence(
                t, n, batch_first=True, enforce_sorted=False).data
            loss = F.cross_entropy(pack(out), pack(y)) + 0.1 * out.mean(1).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, """
        n = torch.arange(44) % 5 + 1
        words = TensorDataset(torch.randn(44, 5, 8), torch.randint(4, (44, 5)), n)
        loader = DataLoader(words, 8, drop_last=True)
        """),
    "the mean of pictures' means over their boxes": ("mixed-loss", """
        for xs, ys in loader:
            loss = sum(F.cross_entropy(model(x), y) for x, y in zip(xs, ys)) / len(xs)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, """
        boxes = [(torch.randn(1 + i % 5, 8), torch.randint(4, (1 + i % 5,))) for i in range(40)]
        loader = DataLoader(boxes, 8, collate_fn=lambda s: tuple(zip(*s)))
        """),
    "a distance": ("mixed-loss", with_loss(
        "torch.dist(model(x), F.one_hot(y, 4).float())"), ""),
    "rows by the size of the whole batch": ("shaped-by-whole", with_loss(
        "(model(x) - F.one_hot(y, 4)).view(batch_size, -1).norm(dim=1).mean()"),
        f"batch_size = 8; {EVEN}"),
    "rows by a number, of a tuple": ("shaped-by-whole", with_loss(
        "torch.reshape(model(x) - F.one_hot(y, 4), (8, -1)).norm(dim=1).mean()"), EVEN),
    "a memory beside the batch": ("other-rows", with_loss(
        "F.cross_entropy(model(torch.cat([x, M])), torch.cat([y, N]))"),
        "M, N = torch.randn(10, 8), torch.randint(4, (10,))"),
    "noise of NumPy's newer generators": ("random-host", with_loss(
        "F.cross_entropy(model(x + torch.from_numpy(rng.normal(size=x.shape)).float()), y)"),
        "rng = np.random.default_rng(0)"),
    "noise of a generator of torch": ("random-host", with_loss(
        "F.cross_entropy(model(x + torch.randn(x.shape, generator=g)), y)"),
        "g = torch.Generator().manual_seed(3)"),
    "noise of a generator of a function": ("random-host", """
        def train():
            g = torch.Generator().manual_seed(3)
            for x, y in loader:
                F.cross_entropy(model(x + torch.randn(x.shape, generator=g)), y).backward()
                opt.step()
        train()
        """, ""),
    "noise of a generator of an object": ("random-host", """
        for x, y in loader:
            F.cross_entropy(model(x + trainer.noise(x)), y).backward()
            opt.step()
        """, """
        class Trainer:
            def __init__(self):
                self.rng = np.random.default_rng(0)
            def noise(self, x):
                return torch.from_numpy(self.rng.normal(size=x.shape)).float()
        trainer = Trainer()
        """),
    "noise of a stream of its own": ("random-host", """
        for step, (x, y) in enumerate(loader):
            with torch.random.fork_rng():
                torch.manual_seed(step)
                noise = torch.randn(x.shape)
            F.cross_entropy(model(x + noise), y).backward()
            opt.step()
        """, ""),
    "augmentation by a generator of the dataset": ("random-data", TRAIN, """
        class Noisy(Dataset):
            def __init__(self):
                self.rng = np.random.default_rng(0)
            def __len__(self):
                return 44
            def __getitem__(self, i):
                return X[i] + self.rng.normal(), Y[i]

        loader = DataLoader(Noisy(), batch_size=8)
        """),
    "a contrastive loss of a tokenizer's batch": ("coupled-batch", with_loss(
        "F.cross_entropy(model(batch['x']) @ model(batch['x']).T, torch.arange(len(batch['x'])))"
        ).replace("x, y in", "batch in"), """
        from transformers import BatchEncoding
        def collate(samples):
            return BatchEncoding({"x": torch.stack([x for x, _ in samples])})
        loader = DataLoader(dataset, batch_size=8, collate_fn=collate)
        """),
    "losses gathered by sizes": ("batch-sizes", """
        parts = []
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            parts.append(loss.item() * len(x))
        """, ""),
    "two backward passes after batch normalisation": ("batch-norm", """
        for x, y in loader:
            out = model(x)
            opt.zero_grad()
            F.cross_entropy(out, y).backward(retain_graph=True)
            out.pow(2).mean().backward()
            opt.step()
        """, BATCH_NORM),
    "samples counted around a generator": ("batch-sizes", """
        def batches():
            for batch in loader:
                yield batch
        seen = 0
        for x, y in batches():
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            seen += len(x)
        """, ""),
    "samples one by one, clipped": ("in-pieces", """
        for x, y in loader:
            gradients = [torch.zeros_like(p) for p in model.parameters()]
            for a, b in zip(x, y):
                model.zero_grad()
                F.cross_entropy(model(a), b).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                for p, g in zip(model.parameters(), gradients):
                    g += p.grad
            for p, g in zip(model.parameters(), gradients):
                p.grad = g / len(x)
            opt.step()
        """, "    loader = DataLoader(dataset, 8, drop_last=True)"),
    "terms balanced by numbers": ("own-number", with_loss(
        "(a := F.cross_entropy(model(x), y)) + (b := model(x).square().mean()) "
        "* (a.item() / b.item())"), ""),
    "a loss read before its pass": ("own-number", TRAIN.replace(
        "    loss.backward()", "    first = loss.item()\n        loss.backward()"), ""),
    "hits counted in training": ("own-number", """
        hits = 0
        for x, y in loader:
            out = model(x)
            loss = F.cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            hits += (out.argmax(1) == y).sum().item()
        """, ""),
    "a table of losses": ("own-values", """
        for x, y, i in loader:
            each = F.cross_entropy(model(x), y, reduction="none")
            opt.zero_grad()
            (each / (1 + table[i])).mean().backward()
            opt.step()
            table[i] = each.detach()
        """, """
        table = torch.zeros(44)
        loader = DataLoader(TensorDataset(X, Y, torch.arange(44)), 8)
        """),
    "hits counted in a tensor": ("own-values", """
        hits = torch.zeros(())
        for x, y in loader:
            out = model(x)
            opt.zero_grad()
            F.cross_entropy(out, y).backward()
            opt.step()
            hits += (out.argmax(1) == y).sum()
        """, ""),
    "losses weighed by a named size": ("batch-sizes", TRAIN.replace(
        "    losses.append(loss.item())",
        "    n = x.size(0)\n        total = total + loss.item() * n"), "total = 0"),
    "samples that a batch says it has": ("batch-sizes", """
        for batch in loader:
            loss = F.cross_entropy(model(batch.x), batch.y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item() * batch.num_graphs
        """, """
        total = 0.0
        class Graphs:
            def __init__(self, samples):
                self.x, self.y = (torch.stack(part) for part in zip(*samples))
                self.num_graphs = len(samples)
        loader = DataLoader(dataset, 8, collate_fn=Graphs, drop_last=True)
        """),
    "losses added up by a method": ("batch-sizes", TRAIN.replace(
        "losses.append(loss.item())", "meter.take(loss, x)"), """
        class Meter:
            def __init__(self):
                self.total = 0.0
            def take(self, loss, x):
                self.total += loss.item() * x.size(0)
        meter = Meter()
        """),
    "losses handed to an accumulator": ("batch-sizes", TRAIN.replace(
        "losses.append(loss.item())", "metric.add(loss.detach() * x.shape[0], x.shape[0])"), """
        class Accumulator:
            def __init__(self):
                self.data = [0.0, 0.0]
            def add(self, *args):
                self.data = [a + float(b) for a, b in zip(self.data, args)]
        metric = Accumulator()
        """),
    "samples printed by number": ("batch-sizes", """
        for batch, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            opt.zero_grad()
            shown = loss.item(), batch * 8 + len(x)
        """, ""),
    "a running mean by sizes": ("batch-sizes", TRAIN.replace(
        "losses.append(loss.item())",
        "mean = (mean * n + loss.item() * len(x)) / (n + len(x)); n += torch.numel(y)"),
        "mean, n = 0.0, 0"),
    "gradients divided by the size": ("batch-sizes", TRAIN.replace(
        "F.cross_entropy(model(x), y)", "F.cross_entropy(model(x), y, reduction='sum')").replace(
        "    opt.step()",
        "    for p in model.parameters():\n            p.grad /= len(x)\n        opt.step()"), ""),
    "a sum by a ratio with the size": ("by-chance", TRAIN.replace(
        "    opt.zero_grad()", "    scale = N / len(x)\n        opt.zero_grad()").replace(
        "F.cross_entropy(model(x), y)", "scale * F.cross_entropy(model(x), y, reduction='sum')"),
        "N = len(dataset)\nopt.param_groups[0]['lr'] = 1e-3\n"
        "loader = DataLoader(dataset, 8, drop_last=True)"),
    "a mean by a ratio with the size": ("by-chance", with_loss(
        "F.cross_entropy(model(x), y) * (len(x) / len(dataset))"), EVEN),
    "a sum and a term over fixed points": ("sum-beside", with_loss(
        "0.1 * F.cross_entropy(model(x), y, reduction='sum') + model(edge).pow(2).sum()"),
        "edge = torch.randn(5, 8)"),
    "samples along an LSTM's time": ("coupled-batch", """
        for x, y in loader:
            out, _ = lstm(x)
            loss = F.cross_entropy(head(out), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, """
        lstm, head = nn.LSTM(8, 6), nn.Linear(6, 4)
        opt = torch.optim.SGD([*lstm.parameters(), *head.parameters()], lr=0.1)
        """),
    "outputs that leave as arrays": ("own-number", """
        def train():
            seen = []
            for x, y in loader:
                out = model(x)
                loss = F.cross_entropy(out, y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                seen.append(out.detach().numpy())
            print(np.concatenate(seen).mean())
        train()
        """, ""),
    "a rate by the size of a batch": ("batch-sizes", TRAIN.replace(
        "    opt.step()", "    opt.param_groups[0]['lr'] = 0.1 * len(x) / 8\n        opt.step()"
        ), ""),
    "a penalty divided by the size": ("scaled-penalty", with_loss(
        "F.cross_entropy(model(x), y) + sum(p.pow(2).sum() for p in model.parameters()) / len(x)"
        ), ""),
    "a loss chosen by the batch": ("branches", with_loss(
        "F.mse_loss(model(x), X[:len(x), :4]) if y[0] > 0 else 0 * model(x).sum()"), ""),
    "batches left out by a rank's share": ("walked-apart", """
        for x, y in loader:
            if x[0, 0] in (X[16, 0], X[36, 0]):
                continue
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, "    loader = DataLoader(dataset, 8)"),
    "a memory beside uneven shares": ("mixed-loss", with_loss(
        "F.cross_entropy(model(X[:16]), Y[:16]) + F.cross_entropy(model(x), y)"),
        "loader = DataLoader(dataset, 5)"),
    "batches left out by their size": ("size-asked", """
        for x, y in loader:
            if len(x) < 2:
                continue
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, ""),
    "a sum that was read, by the size of the batch": ("batch-sizes", TRAIN.replace(
        "F.cross_entropy(model(x), y)", "F.cross_entropy(model(x), y, reduction='sum')").replace(
        "loss.item()", "loss.item() / len(x)"), ""),
    "a spread over the batch": ("mixed-loss", with_loss(
        "F.cross_entropy(model(x), y) + F.relu(1 - model(x).std(0)).mean()"), ""),
    "the largest of the batch": ("mixed-loss", with_loss("model(x).amax(0).sum()"), ""),
    "members of an ensemble": ("time-first", """
        for x, y in loader:
            values = torch.stack([critic(x).squeeze(-1) for critic in critics])
            loss = ((values - y.float()) ** 2).mean(dim=1).sum(dim=0)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, """
        critics = nn.ModuleList(nn.Linear(8, 1) for _ in range(5))
        opt = torch.optim.SGD(critics.parameters(), lr=0.05)
        loader = DataLoader(dataset, 8, drop_last=True)
        """),
    "first values from the data": ("came-apart", """
        first = True
        for x, y in loader:
            if first:
                model.body.bias.data = -(x @ model.body.weight.T).mean(0).detach()
                first = False
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, ""),
    "a vector": ("vector-loss", TRAIN.replace("loss.backward()",
        "F.cross_entropy(model(x), y, reduction='none').backward(torch.ones(len(x)))"
        ).replace("loss.item()", "0"), ""),
    "a loop that does not train": ("not-trained", """
        opt.zero_grad()
        it = iter(loader)
        total = 0
        for _ in range(3):
            total += len(next(it)[0])
        del it
        """, ""),
    "two loaders that split differently": ("two-loaders", """
        for (x, y), (x2, y2) in zip(loader, other):
            loss = F.cross_entropy(model(x), y) + F.cross_entropy(model(x2), y2)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, "    other = DataLoader(dataset, batch_size=7)"),
    "no loader": ("not-sharded", "F.cross_entropy(model(X), Y).backward()\nopt.step()", ""),
    "samples instead of batches": ("whole-batches", """
        for x, y in loader:
            F.cross_entropy(model(x[None]), y[None]).backward()
            opt.step()
        """, "    loader = DataLoader(dataset, batch_size=None)"),
    "batches that cannot be cut": ("whole-batches", """
        for batch in loader:
            loss = sum(F.cross_entropy(model(x), y) for x, y in batch) / len(batch)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, RAGGED),
}  # fmt: skip


@pytest.mark.parametrize(("topic", "cell", "setup"), DUE.values(), ids=DUE.keys())
def test_a_notice_is_given_when_it_is_due(topic: str, cell: str, setup: str) -> None:
    namespace = notebook(textwrap.dedent(setup))
    run = nbmgpu.run(textwrap.dedent(cell), namespace, gpus=2, cpu=True)
    topics = set(run.view.notices) - {"devices", "rank-0-values"}
    assert topics - {"not-sharded"} == {topic} - {"not-sharded"}
    assert topic in topics


QUIET = {
    "halves of a batch treated alike": (with_loss(
        "sum(F.cross_entropy(model(a), b) for a, b in zip(x.chunk(2), y.chunk(2))) / 2"), EVEN),
    "a buffer that no state has": (TRAIN, CENTRED.replace("zeros(8)", "zeros(8), False").format(
        given="x", kept="self.centre = x.mean(0)")),
    "gradients of parameters, and by torch.autograd": ("""
        for x, y in loader:
            x.requires_grad_()
            out = model(x)
            slope, = torch.autograd.grad(out.sum(), x, create_graph=True)
            loss = F.cross_entropy(out, y) + (slope.square().sum(1) - 1).square().mean()
            opt.zero_grad()
            loss.backward()
            norms = [p.grad.norm() for p in model.parameters()], model.body.weight.grad.norm()
            opt.step()
        """, ""),
    "samples without random numbers, in workers": (TRAIN, AUGMENTED.replace(
        "=8", "=8, num_workers=1").format(noise="0")),
    "dropout without probability": (TRAIN, DROPOUT.replace("0.5", "0.0")),
    "dropout in evaluation": (
        "model.eval()\nwith torch.no_grad():\n    out = [model(x) for x, _ in loader]\n", DROPOUT
    ),
    "batch normalisation in evaluation": (
        "model.eval()\nwith torch.no_grad():\n    out = [model(x) for x, _ in loader]\n", BATCH_NORM
    ),
    "random numbers between the epochs": (
        TRAIN.replace("    for x", "    noise = torch.randn(3)\n    for x"), ""
    ),
    "losses added up after their passes": (TRAIN.replace("losses.append(loss.item())", """
        running += loss.detach()
        mean = 0.9 * mean + 0.1 * loss.item()
        if loss > 10:
            break"""), "running, mean = torch.zeros(()), 0"),
    "numbers that torch reads itself": ("""
        for x, y in loader:
            width = y.max() * 0 + 8
            targets = F.one_hot(y, 4).float()
            if y.sum() + 1:
                loss = F.cross_entropy(model(x[:, :width]), targets)
            nbmgpu.log(early=loss)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, "    import nbmgpu"),
    "samples of the batch written over": ("""
        for x, y in loader:
            spared = x > -1
            x[spared & (x > 1)] = 0
            x[spared & (x > 0.5)] = 1
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, ""),
    "values gathered within a step": (with_loss(
        "F.cross_entropy(torch.cat([model(x[:2]), model(x[2:])]), y) "
        "+ torch.zeros(len(x)).add_(y * 0).mean()"), ""),
    "a generator that a sampler draws from": (TRAIN, """
        g = torch.Generator().manual_seed(1)
        loader = DataLoader(dataset, 8, shuffle=True, generator=g)
        """),
    "a generator that another loader's sampler draws from": ("""
        for (x, y), (x2, y2) in zip(loader, other):
            loss = F.cross_entropy(model(torch.cat([x, x2])), torch.cat([y, y2]))
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, """
        g = torch.Generator().manual_seed(1)
        other = DataLoader(dataset, 8, shuffle=True, generator=g)
        """),
    "a running mean by the number of batches": (
        TRAIN.replace("losses.append(loss.item())", "mean += loss.item() / len(loader)"),
        "    mean = 0.0"),
    "a memory beside even shares": (with_loss(
        "F.cross_entropy(model(X[:17]), Y[:17]) + F.cross_entropy(model(x), y)"), ""),
    "class weights and smooth labels": (with_loss(
        "F.cross_entropy(model(x), y, torch.tensor([.13, .71, 1.37, 2.9]), label_smoothing=0.1)"),
        ""),
    "a count that comes with the batch": (with_loss(
        "F.cross_entropy(model(x), y, reduction='sum') / n").replace("x, y in", "x, y, n in"), """
        def collate(samples):
            xs, ys = zip(*samples)
            return torch.stack(xs), torch.stack(ys), torch.tensor(float(len(ys)))
        loader = DataLoader(dataset, 8, collate_fn=collate)
        """),
    "an evaluation within the loop that counts by sizes": ("""
        for step, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 3 == 0:
                losses.append(evaluate(model, val_loader, "cpu"))
        """, """
        def evaluate(model, loader, device):
            total = 0.0
            with torch.no_grad():
                for x, y in loader:
                    x, y = x.to(device), y.to(device)
                    total += F.cross_entropy(model(x), y).item() * x.size(0)
            return total / len(loader.dataset)
        """),
    "a temperature squared, and a mean over batches": ("total, T = 0.0, 4.0\n" + with_loss(
        "F.kl_div(F.log_softmax(model(x) / T, 1), F.softmax(x[:, :4] / T, 1), "
        "reduction='batchmean') * (T * T)").replace("losses.append(", "total += (")
        + "\nprint(total / len(loader))\n", EVEN),
    "a sum and a term by the size": (with_loss(
        "(F.cross_entropy(out := model(x), y, reduction='sum') + out.pow(2).sum()) / x.size(0)"
        ), ""),
    "losses by a setting of the batch size": (TRAIN.replace(
        "losses.append(loss.item())", "losses.append(trainer.weigh(loss, x))"), """
        class Trainer:
            batch_size = 8
            def weigh(self, loss, x):
                return loss.item() * self.batch_size
        trainer = Trainer()
        loader = DataLoader(dataset, 8, drop_last=True)
        """),
    "outputs written step by step, and another sum": ("""
        for x, y in loader:
            out = torch.zeros(2, len(x), 4)
            for t in range(2):
                out[t] = model(x + t)
            loss = F.cross_entropy(out.view(-1, 4), y.repeat(2), reduction="sum")
            loss = 0.1 * (loss + model(x).pow(2).sum())
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, EVEN),
    "outputs that are shown": (with_loss("F.cross_entropy(out := model(x), y)").replace(
        "    opt.step()",
        "    print(out[0], x[0])\n        shown = np.clip(out[0].detach().cpu().numpy(), 0, 1)\n"
        "        opt.step()"), EVEN),
    "a sum, and one over as many that are made for it": (with_loss(
        "0.1 * (F.cross_entropy(model(x), y, reduction='sum') "
        "+ model(torch.ones(len(x), 8)).pow(2).sum())"), EVEN),
    "a running mean over batches, in a function": (TRAIN.replace(
        "losses.append(loss.item())", "note(loss, loader, stats)"), """
        stats = {"loss": 0.0}
        def note(loss, loader, stats):
            stats["loss"] += loss.item() / len(loader)
        """),
    "samples per second, and a weight that grows": ("""
        import time
        step = 0
        for epoch in range(2):
            for x, y in loader:
                begun = time.time()
                beta = min(1.0, step / 100)
                out = model(x)
                loss = F.cross_entropy(out, y) + beta * out.pow(2).mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
                step += 1
                assert len(x) / (time.time() - begun) > 0
        """, EVEN),
    "parts weighed by the batch, then averaged": ("""
        for x, y in loader:
            parts = []
            for net in (model, model.body):
                parts.append(net(x).pow(2).mean() * len(x))
            loss = torch.stack(parts).sum() / len(x)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, EVEN),
    "an LSTM, batch first": ("""
        for x, y in loader:
            out, _ = lstm(x.view(-1, 2, 4))
            loss = F.cross_entropy(head(out[:, -1]), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, """
        lstm, head = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 4)
        opt = torch.optim.SGD([*lstm.parameters(), *head.parameters()], lr=0.1)
        """),
    "arrays of what came with the batch, lists of lengths": (with_loss(
        "F.cross_entropy(model(x), y)").replace(
        "    opt.step()", "    shown = x.numpy()\n        lengths = (x > 0).sum(1).tolist()\n"
        "        opt.step()"), "loader = DataLoader(dataset, 8, drop_last=True)"),
    "a ratio written from left to right": (with_loss(
        "F.cross_entropy(model(x), y, reduction='sum') * 44 / len(x) * 0.1"), EVEN),
    "pieces of the forward pass, joined again": (with_loss(
        "F.cross_entropy(torch.cat([model(a) for a in x.split(4)]), y)"), ""),
    "a learned scale of a sum": (with_loss(
        "F.mse_loss(model(x)[:, 0], y.float(), reduction='sum') * scale"), """
        scale = nn.Parameter(torch.tensor(0.1))
        opt = torch.optim.SGD([*model.parameters(), scale], lr=0.01)
        """),
    "the system's generator": (TRAIN, "system = random.SystemRandom()"),
    "losses of single samples, averaged": (with_loss(
        "torch.stack([F.mse_loss(model(a), torch.ones(4)) for a in x]).mean()"),
        "    loader = DataLoader(dataset, 8, drop_last=True)"),
    "rows of the step's own beside the batch": (with_loss(
        "F.cross_entropy(model(torch.cat([x, torch.zeros(len(x), 8)])), torch.cat([y, y]))"), ""),
    "pieces by number": ("""
        for x, y in loader:
            opt.zero_grad()
            for a, b in zip(x.chunk(2), y.chunk(2)):
                (F.cross_entropy(model(a), b) / 2).backward()
            opt.step()
        """, "    loader = DataLoader(dataset, 8, drop_last=True)"),
    "pieces by their number, in a class": ("trainer.fit(loader)", """
        class Trainer:
            def fit(self, loader):
                for x, y in loader:
                    opt.zero_grad()
                    for a, b in zip(x.chunk(2), y.chunk(2)):
                        (F.cross_entropy(model(a), b) / 2).backward()
                    opt.step()
        trainer, loader = Trainer(), DataLoader(dataset, 8, drop_last=True)
        """),
    "two loaders that split alike": ("""
        for (x, y), (x2, y2) in zip(loader, other):
            loss = F.cross_entropy(model(x), y) + F.cross_entropy(model(x2), y2)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, "    other = DataLoader(dataset, batch_size=4)"),
}  # fmt: skip


@pytest.mark.parametrize(("cell", "setup"), QUIET.values(), ids=QUIET.keys())
def test_a_notice_is_not_given_when_it_is_not_due(cell: str, setup: str) -> None:
    namespace = notebook(textwrap.dedent(setup))
    before = set(namespace)
    run = nbmgpu.run(textwrap.dedent(cell), namespace, gpus=2, cpu=True)
    assert set(run.view.notices) <= {"devices", "rank-0-values"}
    said = run.view.notices.get("rank-0-values")
    named = set(re.findall(r"`(\w+)`", said.text)) if said else set()
    assert not named & before, "the notebook's own objects are one device's"


def test_batches_that_cannot_be_cut_leave_one_devices_numbers() -> None:
    _, cell, setup = DUE["batches that cannot be cut"]
    result = compare(idiom("uncut", cell, setup=setup))
    assert not result.wrong


def test_values_of_rank_0_alone_are_named() -> None:
    cell = TRAIN + "\nfirst = x[0, 0].item()\n"
    run = nbmgpu.run(cell, notebook(""), gpus=2, cpu=True)
    assert "`first`" in run.view.notices["rank-0-values"].text
    assert "`losses`" not in run.view.notices["rank-0-values"].text
    assert "`x`" not in run.view.notices["rank-0-values"].text, "a loop's variable"
    assert run.results[1]["first"] != run.results[0]["first"]


def test_so_are_values_gathered_in_what_the_notebook_had() -> None:
    cell = (
        TRAIN
        + """
        outs.append(model(x).detach())
        history["right"].append((model(x).argmax(1) == y).float().mean())
"""
    )
    setup = "outs, history, names = [], {'right': []}, ['left', 'alone']"
    run = nbmgpu.run(cell, notebook(setup), gpus=2, cpu=True)
    text = run.view.notices["rank-0-values"].text
    assert "`outs`" in text
    assert "`history`" in text
    assert "`losses`" not in text
    assert "`names`" not in text
    assert run.results[0]["history"] != run.results[1]["history"]


def test_running_statistics_are_the_same_on_all_ranks() -> None:
    namespace = notebook(textwrap.dedent(BATCH_NORM))
    run = nbmgpu.run(
        TRAIN + "\nmean = model[1].running_mean.clone()\n", namespace, gpus=2, cpu=True
    )
    assert run.results[0]["mean"].allclose(run.results[1]["mean"])
    assert namespace["model"][1].running_mean.abs().sum() > 0
