"""What a loss may be, also of masked samples and tokens."""

from idioms.idiom import idiom
from idioms.sources import REGRESSION, TOKENS
from idioms.sources import with_loss_and_optimizer as with_loss

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
    "rank_local": "m l",
    "ranks": (2, 3),
    "setup": """
M = (torch.rand(44) > 0.4).float()
M[4:8] = M[16:20] = M[32:40] = 0  # a rank's shard, another one's, all of a batch
loader = DataLoader(TensorDataset(X, Y, M), batch_size=8)
ignoring = nn.CrossEntropyLoss(reduction='none')
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
        """, rank_local="values", ranks=(2, 3)),
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
    idiom("ignore_index, a rank without targets", """
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
        """, setup=TOKENS, rank_local="mask l", ranks=(2, 3)),
    idiom("a masked mean by indexing", """
        for x, y in loader:
            mask = y != -100
            loss = F.cross_entropy(model(x)[mask], y[mask])
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup=TOKENS, rank_local="mask", ranks=(2, 3)),
    idiom("a mean of what a mask selects", """
        for x, y in loader:
            l = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none")
            loss = l[y != -100].mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup=TOKENS, rank_local="l", ranks=(2, 3)),
    idiom("a mean of what a mask selects, a rank with nothing selected", """
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
        """, rank_local="hard"),
    idiom("a mean over the mean of weights", """
        for x, y in loader:
            l, mask = F.cross_entropy(model(x), y, reduction="none"), 1.0 + (y > 1)
            loss = (l * mask).mean() / mask.mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, 5)", rank_local="l mask", ranks=(2, 3)),
    idiom("a mask that selects one sample of a rank", """
        for x, y in loader:
            out, keep = model(x), x[:, 0] > 0.3
            loss = 0.1 * F.mse_loss(out[keep][:, 0].reshape(-1), x[keep][:, 1])
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, 5)", rank_local="out keep", ranks=(2, 3)),
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
        """, setup=TOKENS, rank_local="mask l"),]  # fmt: skip
