"""What losses are divided by: batch sizes, numbers of chosen samples, sums of masks and weights."""

from typing import Any

from idioms.idiom import idiom
from idioms.sources import REGRESSION, TOKENS
from idioms.sources import with_loss_and_optimizer as with_loss

STACKED_SUMS = """
for x, y in loader:
    t = F.one_hot(y, 4).float()
    loss = torch.stack([((model(a) - b) ** 2).sum() for a, b in zip(x, t)]).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
"""

CHOSEN = """
for x, t, m in loader:
    loss = {}
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
"""
OF_SOME: dict[str, Any] = {
    "rank_local": "t m",
    "ranks": (2, 3),
    "setup": """
M = torch.arange(44) % 7 < 2
M[:4] = True  # as many on all ranks in the first step would be a constant
opt = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(X, torch.randn(44, 4), M), batch_size=8)
""",
}

IDIOMS = [
    idiom("scaled for accumulation, read unscaled", """
        for step, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y)
            (loss / 2).backward()
            losses.append(loss.item())
            if step % 2:
                opt.step()
                opt.zero_grad()
        """),
    idiom("a sum / the number of chosen samples", CHOSEN.format(
        "F.smooth_l1_loss(model(x)[m.nonzero()[:, 0]], t[m.nonzero()[:, 0]], reduction='sum')"
        " / max(1, len(m.nonzero()))"), **OF_SOME),
    idiom("a masked sum / a number of samples", CHOSEN.format(
        "((model(x) - t).square().sum(1) * m).sum() / max(1, len(m.nonzero()))"), **OF_SOME),
    idiom("a sum / the rows that were chosen", CHOSEN.format(
        "(model(x)[m] - t[m]).square().sum() / len(t[m])"), **OF_SOME),
    idiom("a sum / a number of the collate function", """
        for batch in loader:
            l = F.cross_entropy(model(batch["x"]), batch["y"], reduction="none")
            loss = (l * (batch["y"] > 0)).sum() / batch["tokens"]
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="""
        def collate(samples):
            x, y = (torch.stack(part) for part in zip(*samples))
            return {"x": x, "y": y, "tokens": max(1, int((y > 0).sum()))}
        Y[:8] = torch.tensor([1, 1, 1, 0, 0, 0, 1, 0])  # as many on all ranks would be a constant
        loader = DataLoader(dataset, 8, collate_fn=collate)
        """, ranks=(2, 3), rank_local="l batch"),
    idiom("a mean times the size of the batch", with_loss(
        "F.cross_entropy(model(x), y) * len(x) / 8")),
    idiom("a mean times the fraction of the data in the batch", with_loss(
        "F.cross_entropy(model(x), y) * len(x) / len(dataset)"),
        setup="loader = DataLoader(dataset, 11)", ranks=(2, 3)),
    idiom("means of two parts, weighed by their sizes", with_loss(
        "(F.cross_entropy(model(x), y) * len(x) + F.cross_entropy(model(-x), y) * len(y))"
        " / (len(x) + len(y))"), setup="loader = DataLoader(dataset, 8, drop_last=True)"),
    idiom("a vector times itself", """
        for x, t in loader:
            r = (model(x) - t).flatten()
            loss = 0.05 * (r @ r)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup=REGRESSION, ranks=(2, 3), rank_local="t r"),
    idiom("a mask times losses, by its sum", CHOSEN.format(
        "torch.dot(m.float(), (model(x) - t).square().sum(1)) / m.sum()"),
        rank_local="t m", setup="""
        M = torch.arange(44) % 2 == 0
        opt = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = DataLoader(TensorDataset(X, torch.randn(44, 4), M), batch_size=8)
        """),
    idiom("a sum by einsum", with_loss(
        "torch.einsum('nd,nd->', model(x) - y, model(x) - y) / y.numel()"),
        setup=REGRESSION, ranks=(2, 3)),
    idiom("as many elements in a shard as samples in the batch", """
        for x, t in loader:
            loss = ((model(x)[:, :2] - t) ** 2).sum() / t.numel()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(TensorDataset(X, torch.randn(44, 2)), 8)", rank_local="t"),
    idiom("another loss after a hundred steps", """
        for epoch in range(20):
            for x, y, m in loader:
                out = model(x)
                loss = F.cross_entropy(out, y) if epoch < 18 else (
                    F.cross_entropy(out[m], y[m], reduction="sum") * 1.0 / max(1, 3 * int(m.sum())))
                opt.zero_grad()
                loss.backward()
                opt.step()
                losses.append(loss.item())
        """, setup="""
        loader = DataLoader(TensorDataset(X, Y, torch.arange(44) % 8 < 5), 8)
        """, rank_local="m loss"),
    idiom("two losses in one pass", """
        for x, t in loader:
            out = model(x)
            torch.autograd.backward([((out - t) ** 2).sum() * 0.01, out.pow(2).sum() * 0.01])
            opt.step()
            opt.zero_grad()
        """, setup=REGRESSION, ranks=(2, 3), rank_local="t"),
    idiom("one number, added up and averaged", """
        for x, y in loader:
            out = model(x)
            loss = F.cross_entropy(out, y).sum() + 0.1 * out.pow(2).mean().sum().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, 7)", ranks=(2, 3)),
    idiom("what is not ignored, averaged once more", """
        for ids, labels in loader:
            loss = F.cross_entropy(model(ids).view(-1, 10), labels.view(-1)).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup=TOKENS, rank_local="ids labels", ranks=(2, 3)),
    idiom("terms written into a tensor", """
        for x, y in loader:
            out = model(x)
            terms = torch.zeros(3)
            terms[0] = F.cross_entropy(out, y)
            terms[1] = out.pow(2).mean()
            terms[1] *= 0.1
            terms[2] = 0.5
            loss = terms.sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, 7)", rank_local="terms", ranks=(2, 3)),
    idiom("terms of one element, joined", """
        for x, y in loader:
            out = model(x)
            terms = [F.cross_entropy(out, y).view(1), out.pow(2).mean().unsqueeze(0)]
            loss = torch.cat(terms).sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, 7)", rank_local="terms", ranks=(2, 3)),
    idiom("as many terms as a shard has samples", """
        for x, y in loader:
            out = model(x)
            terms = torch.zeros(2)
            terms[0] = F.cross_entropy(out, y)
            terms[1] += (out - 1).pow(2).mean()
            loss = terms.mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, 4)", rank_local="terms", ranks=(2,)),
    idiom("losses of single samples written into a tensor", """
        for x, y in loader:
            terms = torch.zeros(len(x))
            for i in range(len(x)):
                terms[i] = F.cross_entropy(model(x[i]), y[i])
            loss = terms.mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, 8)", rank_local="terms i", ranks=(2, 3)),
    idiom("the mean of single samples' sums, stacked", STACKED_SUMS,
        setup="loader = DataLoader(dataset, 12)", rank_local="t", ranks=(2, 3)),
    idiom("the same, a shard with as many samples as classes", STACKED_SUMS,
        setup="loader = DataLoader(dataset, 8)", rank_local="t", ranks=(2,)),
    idiom("the mean of two sums, stacked", """
        for x, y in loader:
            out = model(x)
            both = [F.cross_entropy(out, y, reduction="sum"), out.pow(2).sum()]
            loss = torch.stack(both).mean() / 5
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, 6)", rank_local="both", ranks=(2, 3)),
    idiom("a mean over packed sequences", """
        pack = nn.utils.rnn.pack_padded_sequence
        for x, t, n in loader:
            out, want = (pack(s, n, batch_first=True, enforce_sorted=False).data
                         for s in (model(x), t))
            loss = F.mse_loss(out, want)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="""
        n = torch.randint(1, 6, (44,))
        loader = DataLoader(TensorDataset(torch.randn(44, 5, 8), torch.randn(44, 5, 4), n), 8)
        """, rank_local="t n out want", ranks=(2, 3)),
    idiom("a mean over rows chosen by their numbers", """
        for x, t, m in loader:
            rows = m.nonzero().squeeze(1)
            loss = F.mse_loss(model(x).index_select(0, rows), t.index_select(0, rows))
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="""
        m = torch.rand(44) > 0.3
        loader = DataLoader(TensorDataset(X, torch.randn(44, 4), m), 8)
        """, rank_local="t m rows", ranks=(2, 3)),
    idiom("a sum of what one sample gives", """
        for x, y in loader:
            pred = model(x)[:, 0].squeeze()
            loss = ((pred - y.squeeze()) ** 2).sum() / 8
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, 2)\nopt.param_groups[0]['lr'] = 0.01",
        rank_local="pred", notices="one-sample"),
    idiom("a mean of what is not nan", """
        for x, y in loader:
            l = F.cross_entropy(model(x), y, reduction="none")
            loss = l.masked_fill(y == 3, torch.nan).nanmean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, 7)", rank_local="l", ranks=(2, 3)),
    idiom("orthogonal weights", with_loss(
        "F.cross_entropy(model(x), y) + 0.1 * ((model.head.weight @ model.head.weight.T"
        " - torch.eye(4)) ** 2).sum()"), ranks=(2, 3)),
    idiom("autograd.grad and a manual step", """
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            grads = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for p, g in zip(model.parameters(), grads):
                    p -= 0.1 * g
            losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, 7)", split=False),
    idiom("autograd.grad, then opt.step()", """
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            for p, g in zip(model.parameters(), torch.autograd.grad(loss, model.parameters())):
                p.grad = g
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, 7)", split=False),
]  # fmt: skip
