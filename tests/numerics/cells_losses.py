"""What a loss may be, and how it may be reduced."""

from typing import Any

from idiom import TRAIN, idiom


def with_loss(expression: str, opt: str = "SGD(model.parameters(), lr=0.05)") -> str:
    """Return the training loop with another loss."""
    loop = TRAIN.replace("F.cross_entropy(model(x), y)", expression)
    return f"opt = torch.optim.{opt}\n{loop}"


TARGETS = "loader = DataLoader(TensorDataset(X, Y, W), 7, shuffle=True)"
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

STACKED_SUMS = """
for x, y in loader:
    t = F.one_hot(y, 4).float()
    loss = torch.stack([((model(a) - b) ** 2).sum() for a, b in zip(x, t)]).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
"""

MASKED = """
for x, y, m in loader:
    opt.zero_grad()
    l = F.cross_entropy(model(x), y, reduction='none')
    loss = {}
    loss.backward()
    opt.step()
    losses.append(loss.item())
"""
MASKS = {
    "shares": "m l",
    "ranks": (2, 3),
    "setup": """
M = (torch.rand(44) > 0.4).float()
M[4:8] = M[16:20] = M[32:40] = 0  # a rank's share, another one's, all of a batch
loader = DataLoader(TensorDataset(X, Y, M), batch_size=8)
ignoring = nn.CrossEntropyLoss(reduction='none')
""",
}

CHOSEN = """
for x, t, m in loader:
    loss = {}
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
"""
OF_SOME: dict[str, Any] = {
    "shares": "t m",
    "ranks": (2, 3),
    "setup": """
M = torch.arange(44) % 7 < 2
M[:4] = True  # as many on all ranks in the first step would be a constant
opt = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(X, torch.randn(44, 4), M), batch_size=8)
""",
}

IDIOMS = [
    idiom("nn.MSELoss", with_loss("nn.MSELoss()(model(x), y)"), setup=REGRESSION),
    idiom("L1 and smooth L1", with_loss(
        "F.l1_loss(model(x), y) + 2 * F.smooth_l1_loss(model(x), y)"), setup=REGRESSION),
    idiom("BCE with logits", with_loss(
        "F.binary_cross_entropy_with_logits(model(x)[:, 0], y.float() / 3)")),
    idiom("KL divergence, batchmean", with_loss(
        "F.kl_div(model(x).log_softmax(1), y.softmax(1), reduction='batchmean')"),
        setup=REGRESSION, ranks=(2, 3)),
    idiom("cosine embedding and triplets", with_loss(
        "F.triplet_margin_loss(model(x), model(x * 0.9), model(x.flip(1)))")),
    idiom("a mean written out", with_loss("((model(x) - y) ** 2).mean()"), setup=REGRESSION),
    idiom("a sum over classes, a mean over samples", with_loss(
        "((model(x) - y) ** 2).sum(1).mean()"), setup=REGRESSION),
    idiom("an ensemble after its samples, dimensions counted from the end", """
        for x, y in loader:
            values = torch.stack([critic(x).squeeze(-1) for critic in critics], dim=-1)
            loss = ((values - y[:, None].float()) ** 2).mean(dim=-2).sum(dim=-1)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="""
        critics = nn.ModuleList(nn.Linear(8, 1) for _ in range(5))
        opt = torch.optim.SGD(critics.parameters(), lr=0.05)
        loader = DataLoader(TensorDataset(X[:43], Y[:43]), 8, shuffle=True)
        """, shares="values", ranks=(2, 3)),
    idiom("a sum, which is read, by the size of the batch", """
        for epoch in range(2):
            total = 0.0
            for x, y in loader:
                out = model(x)
                loss_sum = F.cross_entropy(out, y, reduction="sum")
                spread = out.pow(2).mean()
                loss = loss_sum / len(x) + 0.1 * spread
                opt.zero_grad()
                loss.backward()
                opt.step()
                total += loss_sum.item()
                losses.append(spread.item())
            losses.append(total / len(loader.dataset))
        """, curve=False),
    idiom("a mean per class", with_loss("((model(x) - y) ** 2).mean(0).sum()"), setup=REGRESSION,
        ranks=(2, 3)),
    idiom("torch.mean(torch.stack([...]))", with_loss(
        "torch.stack([F.cross_entropy(model(x), y), model(x).pow(2).mean()]).mean()")),
    idiom("sum([...]) of two terms", with_loss(
        "sum([F.cross_entropy(model(x), y), 0.1 * model(x).pow(2).mean()])")),
    idiom("a mean over the elements of a sum", with_loss(
        "((model(x) - y) ** 2).sum() / y.numel()"), setup=REGRESSION, ranks=(2, 3)),
    idiom("a sum over samples, a mean over classes", with_loss(
        "((model(x) - y) ** 2).sum(0).mean()", "SGD(model.parameters(), lr=0.01)"),
        setup=REGRESSION, ranks=(2, 3)),
    idiom("a sum / a constant / len(x)", with_loss(
        "F.cross_entropy(model(x), y, reduction='sum') / 3 / len(x)"), ranks=(2, 3)),
    idiom("an evidence bound, sums", with_loss(
        "F.mse_loss(model(x), y, reduction='sum')"
        " - 0.5 * torch.sum(1 + model(x) - model(x).pow(2) - model(x).exp())",
        "SGD(model.parameters(), lr=0.001)"), setup=REGRESSION, ranks=(2, 3), rtol=1e-4),
    idiom("a policy gradient with entropy", with_loss(
        "-(model(x).log_softmax(1)[:, 0] * y[:, 0]).mean()"
        " - 0.01 * torch.distributions.Categorical(logits=model(x)).entropy().mean()"),
        setup=REGRESSION),
    idiom("class weights in float64", with_loss(
        "F.cross_entropy(model(x), y, weight=torch.tensor([0.2, 1.0, 3.0, 0.5]).double())"),
        setup="""
        model = Net().double()
        loader = DataLoader(TensorDataset(X.double(), Y), 7, shuffle=True)
        """, ranks=(2, 3), rtol=1e-12, atol=1e-13),
    idiom("class weights", with_loss(
        "F.cross_entropy(model(x), y, weight=torch.tensor([0.2, 1.0, 3.0, 0.5]))"),
        setup="loader = DataLoader(dataset, 7, shuffle=True)", ranks=(2, 3)),
    idiom("label smoothing", with_loss("F.cross_entropy(model(x), y, label_smoothing=0.1)"),
        setup="loader = DataLoader(dataset, 7, shuffle=True)", ranks=(2, 3)),
    idiom("soft targets", with_loss("F.cross_entropy(model(x), y.softmax(1))"), setup=REGRESSION),
    idiom("nll_loss", with_loss("F.nll_loss(F.log_softmax(model(x), 1), y)")),
    idiom("ignore_index, uneven counts", """
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(x).view(-1, 10), y.view(-1))
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup=TOKENS, ranks=(2, 3)),
    idiom("ignore_index, classes in the middle", """
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(x).transpose(1, 2), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup=TOKENS),
    idiom("ignore_index, a rank with none left", """
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y, ignore_index=3)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="""
        Y[4:8], Y[22] = 3, 0
        loader = DataLoader(dataset, batch_size=8)
        """, ranks=(2, 3)),
    idiom("a masked sum by a count of at least 1", MASKED.format(
        "(l * m).sum() / m.sum().clamp(min=1)"), **MASKS),
    idiom("the same, the mask first and weights", MASKED.format(
        "(2 * m * (l * m.cos())).sum() / torch.clamp(m.sum(), min=1)"), **MASKS),
    idiom("the same by torch.where", MASKED.format(
        "torch.where(m > 0, l, 0.0).sum() / (m > 0).sum().clamp(min=1)"), **MASKS),
    idiom("the same by masked_fill", MASKED.format(
        "l.masked_fill(m == 0, 0.0).sum() / m.sum().clamp(min=1)"), **MASKS),
    idiom("the same by an index", MASKED.format(
        "l[m > 0].sum() / (m > 0).sum().clamp(min=1)"), **MASKS),
    idiom("the same of ignored targets", MASKED.format(
        "ignoring(model(x), y.where(m > 0, -100)).sum() / m.sum().clamp(min=1)"), **MASKS),
    idiom("label smoothing and ignore_index", """
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(x).view(-1, 10), y.view(-1), label_smoothing=0.1)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup=TOKENS),
    idiom("a masked mean", """
        for x, y in loader:
            mask = (y != -100).float()
            l = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none")
            loss = (l * mask).sum() / mask.sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup=TOKENS, shares="mask l", ranks=(2, 3)),
    idiom("a masked mean by indexing", """
        for x, y in loader:
            mask = y != -100
            loss = F.cross_entropy(model(x)[mask], y[mask])
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup=TOKENS, shares="mask", ranks=(2, 3)),
    idiom("a mean of what a mask leaves", """
        for x, y in loader:
            l = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none")
            loss = l[y != -100].mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup=TOKENS, shares="l", ranks=(2, 3)),
    idiom("a mean of what a mask leaves, a rank with nothing left", """
        for x, y in loader:
            hard = y == 3
            loss = F.mse_loss(model(x)[hard], torch.ones_like(model(x)[hard]))
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="""
            Y[::5] = 3
            loader = DataLoader(TensorDataset(X, Y), 10)
        """, shares="hard"),
    idiom("a mean over the mean of weights", """
        for x, y in loader:
            l, mask = F.cross_entropy(model(x), y, reduction="none"), 1.0 + (y > 1)
            loss = (l * mask).mean() / mask.mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, 5)", shares="l mask", ranks=(2, 3)),
    idiom("a mask that leaves one sample to a rank", """
        for x, y in loader:
            out, keep = model(x), x[:, 0] > 0.3
            loss = 0.1 * F.mse_loss(out[keep][:, 0].reshape(-1), x[keep][:, 1])
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, 5)", shares="out keep", ranks=(2, 3)),
    idiom("rows of a table in the loss", """
        for x, y in loader:
            loss = (model(x) - model.head.bias[torch.tensor([1])]).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, 3)", ranks=(2, 3)),
    idiom("a penalty through a strided view", """
        for x, y in loader:
            penalty = model.head.weight[:, :2].reshape(4, 1, 2).square().sum() / 10
            loss = F.cross_entropy(model(x), y) + penalty
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, 3)", ranks=(2, 3)),
    idiom("a masked sum, clamped count", """
        for x, y in loader:
            mask = (y != -100).float()
            l = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none")
            loss = (l * mask).sum() / mask.sum().clamp(min=1)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup=TOKENS, shares="mask l"),
    idiom("a sum", with_loss("F.cross_entropy(model(x), y, reduction='sum')",
        "SGD(model.parameters(), lr=0.01)"), ranks=(2, 3)),
    idiom("a sum written out", with_loss("((model(x) - y) ** 2).sum()",
        "SGD(model.parameters(), lr=0.001)"), setup=REGRESSION),
    idiom("a sum / len(x)", with_loss(
        "F.cross_entropy(model(x), y, reduction='none').sum() / len(x)"),
        setup="loader = DataLoader(dataset, 7)", ranks=(2, 3)),
    idiom("a sum of what was divided by len(x)", with_loss(
        "(F.cross_entropy(model(x), y, reduction='none') / len(x)).sum()"), ranks=(2, 3)),
    idiom("a sum of two terms, each divided before", with_loss(
        "(F.cross_entropy(model(x), y, reduction='none') / len(x)"
        " + 0.1 * model(x).square().sum(1) / len(x)).sum()"), ranks=(2, 3)),
    idiom("a sum of terms weighed per sample", with_loss(
        "(F.cross_entropy(model(x), y, reduction='none') / (y + 1)).sum() / len(x)"), ranks=(2, 3)),
    idiom("a sum * 1 / 4, the samples of a rank", with_loss(
        "F.cross_entropy(model(x), y, reduction='sum') * 0.25"),
        setup="loader = DataLoader(dataset, batch_size=8, drop_last=True)", notices="by-chance"),
    idiom("a sum / 3, the samples of one rank", with_loss(
        "F.cross_entropy(model(x), y, reduction='sum') / 3"), setup="loader = DataLoader("
        "dataset, batch_size=5)", ranks=(2, 3)),
    idiom("a sum of what was divided by 3, the samples of one rank", with_loss(
        "(F.cross_entropy(model(x), y, reduction='none') / 3).sum()"), setup="loader = DataLoader("
        "dataset, batch_size=5)", ranks=(2, 3)),
    idiom("a sum / x.size(0), reduction sum", with_loss(
        "F.mse_loss(model(x), y, reduction='sum') / x.size(0)"), setup=REGRESSION, ranks=(2, 3)),
    idiom("a sum / the batch size as a constant", with_loss(
        "F.cross_entropy(model(x), y, reduction='sum') / 8")),
    idiom("a sum / loader.batch_size, uneven", with_loss(
        "F.cross_entropy(model(x), y, reduction='sum') / loader.batch_size"), ranks=(2, 3)),
    idiom("a sum / a constant", with_loss(
        "F.cross_entropy(model(x), y, reduction='sum') / 10"), ranks=(2, 3)),
    idiom("a sum * a constant", with_loss(
        "F.cross_entropy(model(x), y, reduction='sum') * 0.1"), ranks=(2, 3)),
    idiom("weights per sample, mean", """
        for x, y, w in loader:
            opt.zero_grad()
            loss = (F.cross_entropy(model(x), y, reduction="none") * w).mean()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="W = torch.rand(44)\n" + TARGETS, shares="w"),
    idiom("weights per sample, normalised", """
        for x, y, w in loader:
            opt.zero_grad()
            l = F.cross_entropy(model(x), y, reduction="none")
            loss = (l * w).sum() / w.sum()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="W = torch.rand(44)\n" + TARGETS, shares="w l", ranks=(2, 3)),
    idiom("two tasks, two means", """
        for x, y, w in loader:
            opt.zero_grad()
            logits = model(x)
            first = F.cross_entropy(logits, y)
            second = F.mse_loss(logits[:, 0], w)
            loss = first + 0.5 * second
            loss.backward()
            opt.step()
            losses.append((loss.item(), first.item(), second.item()))
        """, setup="W = torch.rand(44)\n" + TARGETS, shares="w logits", ranks=(2, 3)),
    idiom("learned uncertainties of two tasks", """
        for x, y, w in loader:
            opt.zero_grad()
            logits = model(x)
            first, second = F.cross_entropy(logits, y), F.mse_loss(logits[:, 0], w)
            loss = (torch.exp(-s) * torch.stack([first, second]) + s).sum()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="""
        W = torch.rand(44)
        s = nn.Parameter(torch.zeros(2))
        opt = torch.optim.SGD([*model.parameters(), s], lr=0.05)
        loader = DataLoader(TensorDataset(X, Y, W), 7, shuffle=True)
        """, shares="w logits"),
    idiom("two backwards, one step", """
        for x, y, w in loader:
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            loss = F.mse_loss(model(x)[:, 0], w)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="W = torch.rand(44)\n" + TARGETS, shares="w", curve=False),
    idiom("an L2 penalty on parameters", with_loss(
        "F.cross_entropy(model(x), y) + 1e-2 * sum((p ** 2).sum() for p in model.parameters())"),
        setup="loader = DataLoader(dataset, 7)", ranks=(2, 3)),
    idiom("an L1 penalty on parameters", with_loss(
        "F.cross_entropy(model(x), y) + 1e-2 * sum(p.abs().sum() for p in model.parameters())")),
    idiom("p.norm() as a penalty", with_loss(
        "F.cross_entropy(model(x), y) + 1e-2 * sum(p.norm() for p in model.parameters())"),
        setup="loader = DataLoader(dataset, 7)"),
    idiom("a penalty on all parameters as one vector", with_loss(
        "F.cross_entropy(model(x), y)"
        " + 1e-3 * torch.cat([p.view(-1) for p in model.parameters()]).pow(2).sum()"),
        setup="loader = DataLoader(dataset, 7)"),
    idiom("a penalty on activations", with_loss(
        "F.cross_entropy(model(x), y) + 1e-2 * model.body(x).abs().mean()"), ranks=(2, 3)),
    idiom("a gradient penalty", """
        for x, y in loader:
            x.requires_grad_()
            loss = F.cross_entropy(model(x), y)
            grad, = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            loss = loss + 0.1 * (grad.norm(dim=1) - 1).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, 7)", shares="grad", ranks=(2, 3)),
    idiom("backward(retain_graph=True), twice", """
        for x, y in loader:
            out = model(x)
            first = F.cross_entropy(out, y)
            second = out.pow(2).mean()
            opt.zero_grad()
            first.backward(retain_graph=True)
            second.backward()
            opt.step()
        """, shares="first second"),
    idiom("torch.autograd.backward of two losses", """
        for x, y in loader:
            out = model(x)
            opt.zero_grad()
            torch.autograd.backward([F.cross_entropy(out, y), out.pow(2).mean()])
            opt.step()
        """, setup="loader = DataLoader(dataset, 7)"),
    idiom("distillation of tokens", with_loss(
        "F.kl_div(F.log_softmax(model(x).view(-1, 10), -1), teacher(x).softmax(-1).view(-1, 10), "
        "reduction='batchmean')"),
        setup=TOKENS + "    teacher = nn.Embedding(10, 10).requires_grad_(False)\n",
        ranks=(2, 3)),
    idiom("soft targets of tokens", with_loss(
        "F.cross_entropy(model(x).view(-1, 10), F.one_hot(x.view(-1), 10).float())"),
        setup=TOKENS),
    idiom("a sum over batch and length", with_loss(
        "model(x).square().sum() / (x.size(0) * x.size(1))"), setup=TOKENS),
    idiom("backward(gradient=...)", """
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward(torch.tensor(0.5))
            opt.step()
            losses.append(loss.item())
        """),
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
        """, ranks=(2, 3), shares="l"),
    idiom("a mean times the size of the batch", with_loss(
        "F.cross_entropy(model(x), y) * len(x) / 8")),
    idiom("a mean by the part of the data that a batch is", with_loss(
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
        """, setup=REGRESSION, ranks=(2, 3), shares="t r"),
    idiom("a mask times losses, by its sum", CHOSEN.format(
        "torch.dot(m.float(), (model(x) - t).square().sum(1)) / m.sum()"), shares="t m", setup="""
        M = torch.arange(44) % 2 == 0
        opt = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = DataLoader(TensorDataset(X, torch.randn(44, 4), M), batch_size=8)
        """),
    idiom("a sum by einsum", with_loss(
        "torch.einsum('nd,nd->', model(x) - y, model(x) - y) / y.numel()"),
        setup=REGRESSION, ranks=(2, 3)),
    idiom("as many elements in a share as samples in the batch", """
        for x, t in loader:
            loss = ((model(x)[:, :2] - t) ** 2).sum() / t.numel()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(TensorDataset(X, torch.randn(44, 2)), 8)", shares="t"),
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
        """, shares="m loss"),
    idiom("two losses in one pass", """
        for x, t in loader:
            out = model(x)
            torch.autograd.backward([((out - t) ** 2).sum() * 0.01, out.pow(2).sum() * 0.01])
            opt.step()
            opt.zero_grad()
        """, setup=REGRESSION, ranks=(2, 3), shares="t"),
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
        """, setup=TOKENS, shares="ids labels", ranks=(2, 3)),
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
        """, setup="loader = DataLoader(dataset, 7)", shares="terms", ranks=(2, 3)),
    idiom("terms of one element, joined", """
        for x, y in loader:
            out = model(x)
            terms = [F.cross_entropy(out, y).view(1), out.pow(2).mean().unsqueeze(0)]
            loss = torch.cat(terms).sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, 7)", shares="terms", ranks=(2, 3)),
    idiom("as many terms as a share has samples", """
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
        """, setup="loader = DataLoader(dataset, 4)", shares="terms", ranks=(2,)),
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
        """, setup="loader = DataLoader(dataset, 8)", shares="terms", ranks=(2, 3)),
    idiom("the mean of single samples' sums, stacked", STACKED_SUMS,
        setup="loader = DataLoader(dataset, 12)", shares="t", ranks=(2, 3)),
    idiom("the same, where a share has as many samples as there are classes", STACKED_SUMS,
        setup="loader = DataLoader(dataset, 8)", shares="t", ranks=(2,)),
    idiom("the mean of two sums, stacked", """
        for x, y in loader:
            out = model(x)
            both = [F.cross_entropy(out, y, reduction="sum"), out.pow(2).sum()]
            loss = torch.stack(both).mean() / 5
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, 6)", shares="both", ranks=(2, 3)),
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
        """, shares="t n want", ranks=(2, 3)),
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
        """, shares="t m rows", ranks=(2, 3)),
    idiom("a sum of what one sample gives", """
        for x, y in loader:
            pred = model(x)[:, 0].squeeze()
            loss = ((pred - y.squeeze()) ** 2).sum() / 8
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, 2)\nopt.param_groups[0]['lr'] = 0.01"),
    idiom("a mean of what is not nan", """
        for x, y in loader:
            l = F.cross_entropy(model(x), y, reduction="none")
            loss = l.masked_fill(y == 3, torch.nan).nanmean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, 7)", shares="l", ranks=(2, 3)),
    idiom("weights at right angles", with_loss(
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
