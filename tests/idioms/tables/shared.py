"""Batches that the cell makes itself and the ranks divide: ``nbmgpu.share``."""

from idioms.idiom import idiom

SETUP = """
import nbmgpu
"""

IDIOMS = [
    idiom("slices of a shuffled tensor", """
        for epoch in range(2):
            order = torch.randperm(44)
            for i in range(0, 44, 8):
                index = order[i : i + 8]
                for x, y in nbmgpu.share(X[index], Y[index]):
                    opt.zero_grad()
                    loss = F.cross_entropy(model(x), y)
                    loss.backward()
                    opt.step()
                losses.append(loss.item())
        """, setup=SETUP, split=False, ranks=(2, 3), rank_local="index"),
    idiom("a function makes each batch, and a loop evaluates", """
        def get_batch(split):
            index = torch.randint(0, len(split), (9,))
            return X[split[index]], Y[split[index]]

        training, validation = torch.arange(30), torch.arange(30, 44)
        accuracy = []
        step = 0
        while step < 9:
            for x, y in nbmgpu.share(*get_batch(training)):
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
            losses.append(loss.item())
            step += 1
            if step % 3 == 0:
                with torch.no_grad():
                    for x, y in nbmgpu.share(*get_batch(validation)):
                        accuracy.append((model(x).argmax(1) == y).float().mean().item())
        """, setup=SETUP, split=False),
    idiom("summed losses of pieces of a batch, along another dimension", """
        columns = X.T.contiguous()
        for i in range(0, 44, 11):
            opt.zero_grad()
            for j in range(0, 11, 4):
                chosen = slice(i + j, min(i + j + 4, i + 11))
                for x, y in nbmgpu.share(columns[:, chosen], Y[None, chosen], dim=1):
                    loss = F.cross_entropy(model(x.T), y[0], reduction="sum") / 11
                    loss.backward()
            opt.step()
        """, setup=SETUP, split=False, curve=False, rank_local="loss x y"),
    idiom("several steps on each batch", """
        for i in range(0, 44, 8):
            for x in nbmgpu.share(X[i : i + 8]):
                for repeat in range(3):
                    opt.zero_grad()
                    loss = (model(x) - 1).square().mean()
                    loss.backward()
                    opt.step()
                    losses.append(loss.item())
        """, setup=SETUP, split=False),
    idiom("no backward pass in the loop", """
        for i in range(0, 40, 20):
            opt.zero_grad()
            total = 0.0
            for j in range(0, 20, 10):
                for x, y in nbmgpu.share(X[i + j : i + j + 10], Y[i + j : i + j + 10]):
                    total = total + F.cross_entropy(model(x), y)
            total.backward()
            opt.step()
        """, setup=SETUP, split=False, curve=False, notices="not-sharded"),
    idiom("shared by hand inside a loader that is divided", """
        for a, b in loader:
            for x, y in nbmgpu.share(a, b):
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
            losses.append(loss.item())
        """, setup=SETUP, rank_local="a b"),
]  # fmt: skip
