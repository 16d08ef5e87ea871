"""Cells that are given no notice, although they resemble others that are."""

from idioms.idiom import TRAIN
from idioms.sources import AUGMENTED, BATCH_NORM, DROPOUT, with_loss

from .sources import CENTRED, EVEN

CELLS = {
    "halves of a batch treated equally": (with_loss(
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
    "batch normalization in evaluation": (
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
    "a memory beside even shards": (with_loss(
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
    "two loaders that split equally": ("""
        for (x, y), (x2, y2) in zip(loader, other):
            loss = F.cross_entropy(model(x), y) + F.cross_entropy(model(x2), y2)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, "    other = DataLoader(dataset, batch_size=4)"),
}  # fmt: skip
