"""Sizes of batches, and values of rank 0, that a cell reads."""

from idioms.idiom import TRAIN
from idioms.sources import with_loss

from .sources import CUT, EVEN

CELLS = {
    "pieces of a fixed size, by a constant": ("chunked-batch", CUT.format(size=2, pieces=4), EVEN),
    "pieces as large as a shard, by a constant": (
        "chunked-batch", CUT.format(size=4, pieces=2), EVEN),
    "losses gathered by sizes": ("batch-sizes", """
        parts = []
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            parts.append(loss.item() * len(x))
        """, ""),
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
    "samples one by one, clipped": ("chunked-batch", """
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
    "terms balanced by numbers": ("local-value-read", with_loss(
        "(a := F.cross_entropy(model(x), y)) + (b := model(x).square().mean()) "
        "* (a.item() / b.item())"), ""),
    "a loss read before its pass": ("local-value-read", TRAIN.replace(
        "    loss.backward()", "    first = loss.item()\n        loss.backward()"), ""),
    "hits counted in training": ("local-value-read", """
        hits = 0
        for x, y in loader:
            out = model(x)
            loss = F.cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            hits += (out.argmax(1) == y).sum().item()
        """, ""),
    "accuracy in each tenth step": ("local-value-read", """
        for step, (x, y) in enumerate(itertools.chain(loader, loader)):
            out = model(x)
            loss = F.cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 10 == 9:
                print(f"{step}: {(out.argmax(1) == y).float().mean().item():.2f}")
        """, ""),
    "a table of losses": ("local-values-written", """
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
    "hits counted in a tensor": ("local-values-written", """
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
    "outputs that leave as arrays": ("local-value-read", """
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
    "batches left out by their size": ("size-checked", """
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
}  # fmt: skip
