"""Losses that are not the same on batches and on their slices."""

from idioms.idiom import TRAIN
from idioms.sources import with_loss

from .sources import EVEN, PADDED

CELLS = {
    "halves of a batch treated differently": ("position-in-batch", with_loss(
        "F.cross_entropy(model(x[:len(x) // 2]), y[:len(x) // 2]) "
        "+ 0.1 * model(x[len(x) // 2:]).pow(2).mean()"), EVEN),
    "labelled samples first": ("position-in-batch", with_loss(
        "F.cross_entropy((z := model(x))[:3], y[:3]) "
        "+ F.mse_loss(z.softmax(1), X.new_zeros(len(x), 4))"), EVEN),
    "ratios of classes": ("mixed-loss", with_loss(
        "1 - ((p := model(x).softmax(1)) * (t := F.one_hot(y, 4))).sum(0)"
        ".div((p + t).sum(0) + 1).mean()"), ""),
    "means over labels that are not missing": ("mixed-loss", with_loss(
        "(((out := model(x)) - 1).square() * (m := (x[:, :4] > 0).float())).sum(0)"
        ".div(m.sum(0).clamp(min=1)).mean()"), ""),
    "losses of two samples, added up": ("single-sample-losses", with_loss(
        "sum(F.cross_entropy(model(a[None]), b[None]) for a, b in zip(x, y))"),
        "loader = DataLoader(dataset, 4)"),
    "a mean and a sum": ("mixed-loss", with_loss(
        "F.cross_entropy(model(x), y) + 1e-3 * model(x).pow(2).sum()"), ""),
    "means over different counts": ("mixed-loss", with_loss(
        "F.cross_entropy(model(x), y) + F.cross_entropy(model(x), y, ignore_index=0)"), ""),
    "the root of a mean": ("mixed-loss", with_loss(
        "F.mse_loss(model(x)[:, 0], y.float()).sqrt()"), ""),
    "a ratio of sums": ("mixed-loss", with_loss(
        "1 - model(x).softmax(1)[:, 0].sum() / (1 + model(x).pow(2).sum())"), ""),
    "a sum / 4, the samples of a rank": ("ambiguous-size", with_loss(
        "F.cross_entropy(model(x), y, reduction='sum') / 4"), "loader = DataLoader(dataset, 8, "
        "drop_last=True)"),
    "a sum / 4, once the samples of a rank": ("ambiguous-size", with_loss(
        "F.cross_entropy(model(x), y, reduction='sum') / 4 + 0 * len(x)"), ""),
    "a norm over the batch": ("mixed-loss", with_loss("(model(x)[:, 0] - y).norm()"), ""),
    "a contrastive loss": ("cross-sample", with_loss(
        "F.cross_entropy(model(x) @ model(x).T, torch.arange(len(x)))"), ""),
    "messages between neighbours": ("cross-sample", with_loss(
        "F.cross_entropy(model(x + torch.zeros_like(x).index_add_("
        "0, torch.arange(len(x)).roll(1), x)), y)"), ""),
    "advantages normalized over the batch": ("cross-sample", with_loss(
        "(model(x)[:, 0] * (y - y.float().mean())).mean()"), ""),
    "the first samples": ("part-of-batch", with_loss(
        "F.cross_entropy(model(x)[:2], y[:2])"), ""),
    "a mean over samples chosen before": ("mean-of-subset", with_loss(
        "F.mse_loss(model(x[y > 0])[:, 0], y[y > 0].float())"), ""),
    "twice the size of the batch": ("ambiguous-size", with_loss(
        "F.cross_entropy(model(x), y, reduction='sum') / (2 * len(x))"), ""),
    "losses of single samples, added up": ("single-sample-losses", with_loss(
        "sum(F.mse_loss(model(a), torch.ones(4)) for a in x)"), ""),
    "a sum and a penalty": ("summed-penalty", with_loss(
        "F.cross_entropy(model(x), y, reduction='sum') / 8 "
        "+ sum(p.pow(2).sum() for p in model.parameters())"), ""),
    "a sum over a variance that is a tensor": ("old-divisor", with_loss(
        "F.mse_loss(model(x)[:, 0], y.float(), reduction='sum') / variance"), "variance = X.var()"),
    "time first, summed over time": ("other-dimension-first", """
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
    "a mean times 3, or the samples of some ranks": ("ambiguous-size", with_loss(
        "F.cross_entropy(model(x), y + 0 * 3 * x[:, 3].long()) * len(x) / 8"),
        "loader = DataLoader(dataset, 7)"),
    "a count that was a constant at first": ("late-divisor", """
        for x, y, m in loader:
            loss = F.cross_entropy(model(x)[m], y[m], reduction="sum") * 1.0
            (loss / max(1, 3 * len(m.nonzero()))).backward()
            opt.step()
        """, """
        M = torch.arange(44) % 4 == 0
        M[16:18] = True
        loader = DataLoader(TensorDataset(X, Y, M), 8)
        """),
    "a mean divided by the size of the batch": ("ambiguous-size", with_loss(
        "F.cross_entropy(model(x), y) / len(x)"), ""),
    "a loss that does not tell how it reduces": ("unknown-loss", with_loss(
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
    "padding that nothing masks": ("padded", with_loss(
        "F.cross_entropy(model(x).mean(1), y)"), PADDED),
    "frames of samples, joined": ("concatenated-samples", with_loss(
        "F.mse_loss(model(x)[:, 0], y)"), """
        clips = [(torch.randn(1 + i % 5, 8), torch.randn(1 + i % 5)) for i in range(44)]
        loader = DataLoader(clips, 8, collate_fn=lambda s: [torch.cat(c) for c in zip(*s)])
        """),
    "frames of samples, joined, beside their lengths": ("concatenated-samples", """
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
    "frames of samples, joined in an object": ("concatenated-samples", """
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
    "a number times the size of the batch, in a function": ("ambiguous-size", with_loss(
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
    "rows by the size of the whole batch": ("global-batch-shape", with_loss(
        "(model(x) - F.one_hot(y, 4)).view(batch_size, -1).norm(dim=1).mean()"),
        f"batch_size = 8; {EVEN}"),
    "rows by a number, of a tuple": ("global-batch-shape", with_loss(
        "torch.reshape(model(x) - F.one_hot(y, 4), (8, -1)).norm(dim=1).mean()"), EVEN),
    "a memory beside the batch": ("older-samples", with_loss(
        "F.cross_entropy(model(torch.cat([x, M])), torch.cat([y, N]))"),
        "M, N = torch.randn(10, 8), torch.randint(4, (10,))"),
    "a contrastive loss of a tokenizer's batch": ("cross-sample", with_loss(
        "F.cross_entropy(model(batch['x']) @ model(batch['x']).T, torch.arange(len(batch['x'])))"
        ).replace("x, y in", "batch in"), """
        from transformers import BatchEncoding
        def collate(samples):
            return BatchEncoding({"x": torch.stack([x for x, _ in samples])})
        loader = DataLoader(dataset, batch_size=8, collate_fn=collate)
        """),
    "a sum by a ratio with the size": ("ambiguous-size", TRAIN.replace(
        "    opt.zero_grad()", "    scale = N / len(x)\n        opt.zero_grad()").replace(
        "F.cross_entropy(model(x), y)", "scale * F.cross_entropy(model(x), y, reduction='sum')"),
        "N = len(dataset)\nopt.param_groups[0]['lr'] = 1e-3\n"
        "loader = DataLoader(dataset, 8, drop_last=True)"),
    "a mean by a ratio with the size": ("ambiguous-size", with_loss(
        "F.cross_entropy(model(x), y) * (len(x) / len(dataset))"), EVEN),
    "a sum and a term over fixed points": ("sum-with-fixed-term", with_loss(
        "0.1 * F.cross_entropy(model(x), y, reduction='sum') + model(edge).pow(2).sum()"),
        "edge = torch.randn(5, 8)"),
    "samples along an LSTM's time": ("cross-sample", """
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
    "a penalty divided by the size": ("scaled-penalty", with_loss(
        "F.cross_entropy(model(x), y) + sum(p.pow(2).sum() for p in model.parameters()) / len(x)"
        ), ""),
    "a loss chosen by the batch": ("different-reductions", with_loss(
        "F.mse_loss(model(x), X[:len(x), :4]) if y[0].tolist() > 0 else 0 * model(x).sum()"), ""),
    "a memory beside uneven shards": ("mixed-loss", with_loss(
        "F.cross_entropy(model(X[:16]), Y[:16]) + F.cross_entropy(model(x), y)"),
        "loader = DataLoader(dataset, 5)"),
    "a spread over the batch": ("mixed-loss", with_loss(
        "F.cross_entropy(model(x), y) + F.relu(1 - model(x).std(0)).mean()"), ""),
    "the largest of the batch": ("mixed-loss", with_loss("model(x).amax(0).sum()"), ""),
    "members of an ensemble": ("other-dimension-first", """
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
    "a vector": ("vector-loss", TRAIN.replace("loss.backward()",
        "F.cross_entropy(model(x), y, reduction='none').backward(torch.ones(len(x)))"
        ).replace("loss.item()", "0"), ""),
}  # fmt: skip
