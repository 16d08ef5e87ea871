"""Random numbers, buffers, gradients and loaders that ranks do not share."""

from idioms.idiom import TRAIN
from idioms.sources import AUGMENTED, BATCH_NORM, DROPOUT, with_loss

from .sources import CENTRED, RAGGED

CELLS = {
    "dropout": ("random-step", TRAIN, DROPOUT),
    "noise in the step": ("random-step", with_loss(
        "F.cross_entropy(model(x + 0.1 * torch.randn_like(x)), y)"), ""),
    "noise from the second epoch on": ("random-step", with_loss(
        "F.cross_entropy(model(x) + (0.1 * torch.randn(len(x), 1) if epoch else 0), y)"), ""),
    "a coin tossed from the second epoch on": ("random-host", with_loss(
        "F.cross_entropy(model(x), y) * (random.random() if epoch else 1)"), ""),
    "batch normalization": ("batch-norm", TRAIN, BATCH_NORM),
    "augmentation, torch": ("random-data", TRAIN, AUGMENTED.format(noise="torch.randn(8)")),
    "augmentation, numpy": ("random-data", TRAIN, AUGMENTED.format(
        noise="torch.from_numpy(np.random.randn(8)).float()")),
    "augmentation, random": ("random-data", TRAIN, AUGMENTED.format(noise="random.random()")),
    "augmentation in workers": ("random-data", TRAIN, AUGMENTED.replace(
        "=8", "=8, num_workers=1").format(noise="random.random()")),
    "a buffer that forward() replaces": ("different-buffers", TRAIN, CENTRED.format(
        given="x", kept="self.centre = 0.9 * self.centre + 0.1 * x.mean(0)")),
    "a buffer that forward() writes into": ("averaged-buffer", TRAIN, CENTRED.format(
        given="x - self.centre", kept="self.centre.mul_(0.9).add_(0.1 * x.mean(0))")),
    "the gradient of a batch": ("local-gradient", """
        for x, y in loader:
            x.requires_grad_()
            F.cross_entropy(model(x), y).backward()
            near = x.detach() + 0.1 * x.grad
            opt.zero_grad()
            F.cross_entropy(model(near), y).backward()
            opt.step()
        """, ""),
    "the gradient of a perturbation, frozen model": ("local-gradient", """
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
    "a hook on what a layer gives": ("tensor-hooks", """
        for x, y in loader:
            h = torch.tanh(model.body(x))
            h.register_hook(lambda g: g.clamp(-0.01, 0.01))
            loss = F.cross_entropy(model.head(h), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, ""),
    "another model after batches from next()": ("random-step", """
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
    "something else after a batch from next()": ("repeated-batch", """
        batches = iter(loader)
        x, y = next(batches)
        for _ in range(3):
            opt.zero_grad()
            F.cross_entropy(model(X), Y, reduction="sum").backward()
            opt.step()
        del batches
        """, "opt = torch.optim.SGD(model.parameters(), lr=0.001)"),
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
    "two backward passes after batch normalization": ("batch-norm", """
        for x, y in loader:
            out = model(x)
            opt.zero_grad()
            F.cross_entropy(out, y).backward(retain_graph=True)
            out.pow(2).mean().backward()
            opt.step()
        """, BATCH_NORM),
    "batches left out by a rank's shard": ("different-batches", """
        for x, y in loader:
            if x[0, 0].tolist() in (X[16, 0], X[36, 0]):
                continue
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, "    loader = DataLoader(dataset, 8)"),
    "first values from the data": ("different-weights", """
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
    "samples instead of batches": ("unsharded-batches", """
        for x, y in loader:
            F.cross_entropy(model(x[None]), y[None]).backward()
            opt.step()
        """, "    loader = DataLoader(dataset, batch_size=None)"),
    "batches that cannot be split": ("unsharded-batches", """
        for batch in loader:
            loss = sum(F.cross_entropy(model(x), y) for x, y in batch) / len(batch)
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, RAGGED),
}  # fmt: skip
