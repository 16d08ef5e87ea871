"""How losses of samples are reduced: sums, weights per sample, several terms, penalties."""

from idioms.idiom import idiom
from idioms.sources import REGRESSION, TOKENS, WEIGHTED
from idioms.sources import with_loss_and_optimizer as with_loss

IDIOMS = [
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
        setup="loader = DataLoader(dataset, batch_size=8, drop_last=True)",
        notices="ambiguous-size"),
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
        """, setup="W = torch.rand(44)\n" + WEIGHTED, rank_local="w"),
    idiom("weights per sample, normalized", """
        for x, y, w in loader:
            opt.zero_grad()
            l = F.cross_entropy(model(x), y, reduction="none")
            loss = (l * w).sum() / w.sum()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="W = torch.rand(44)\n" + WEIGHTED, rank_local="w l", ranks=(2, 3)),
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
        """, setup="W = torch.rand(44)\n" + WEIGHTED, rank_local="w logits", ranks=(2, 3)),
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
        """, rank_local="w logits"),
    idiom("two backwards, one step", """
        for x, y, w in loader:
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            loss = F.mse_loss(model(x)[:, 0], w)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="W = torch.rand(44)\n" + WEIGHTED, rank_local="w", curve=False),
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
        """, setup="loader = DataLoader(dataset, 7)", rank_local="grad", ranks=(2, 3)),
    idiom("backward(retain_graph=True), twice", """
        for x, y in loader:
            out = model(x)
            first = F.cross_entropy(out, y)
            second = out.pow(2).mean()
            opt.zero_grad()
            first.backward(retain_graph=True)
            second.backward()
            opt.step()
        """, rank_local="first second"),
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
]  # fmt: skip
