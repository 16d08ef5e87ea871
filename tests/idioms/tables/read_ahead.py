"""Batches that a loop reads before it uses them, and training without a loader."""

from idioms.idiom import idiom

UNEVEN = """
loader = DataLoader(TensorDataset(X[:43], Y[:43]), batch_size=3)
"""
"""15 batches; the last is one sample, which on two ranks is one rank's alone."""

TRAIN_ON = """
def train(x, y):
    opt.zero_grad()
    loss = (F.cross_entropy(model(x), y, reduction="none") / len(x)).sum()
    loss.backward()
    opt.step()
    return loss.item()
"""

IDIOMS = [
    # ------------------------------------------------- batches that are read ahead of their use
    idiom("the next batch is read first", """
        for epoch in range(2):
            batches = iter(loader)
            following = next(batches)
            while following is not None:
                x, y = following
                following = next(batches, None)
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                losses.append(loss.item())
        """, setup=UNEVEN, rank_local="following", ranks=(2, 3), notices="lost:batches"),
    idiom("one batch behind in a for loop", """
        for epoch in range(2):
            before = None
            for batch in loader:
                if before is not None:
                    losses.append(train(*before))
                before = batch
            losses.append(train(*before))
        """, setup=UNEVEN + TRAIN_ON, rank_local="before"),
    idiom("a prefetcher that copies", """
        class Prefetcher:
            def __init__(self, loader):
                self.loader = loader

            def __iter__(self):
                batches = iter(self.loader)
                ready = self.copy(next(batches))
                while ready is not None:
                    given, ready = ready, self.copy(next(batches, None))
                    yield given

            def copy(self, batch):
                return batch and [part.clone() for part in batch]

        for epoch in range(2):
            for x, y in Prefetcher(loader):
                losses.append(train(x, y))
        """, setup=UNEVEN + TRAIN_ON, ranks=(2,), notices="prefetched-batches"),
    idiom("three batches ahead", """
        import collections
        ahead = collections.deque()
        for epoch in range(2):
            batches = iter(loader)
            while True:
                while len(ahead) < 3 and (batch := next(batches, None)):
                    ahead.append(batch)
                if not ahead:
                    break
                losses.append(train(*ahead.popleft()))
        """, setup=UNEVEN + TRAIN_ON, rank_local="ahead", notices="lost:batches"),
    idiom("batches that are left out", """
        for epoch in range(2):
            for number, (x, y) in enumerate(loader):
                if number % 3 == 1:
                    continue
                losses.append(train(x, y))
        """, setup=UNEVEN + TRAIN_ON, ranks=(2,)),
    idiom("all the data after a loop that reads ahead", """
        before = None
        for batch in loader:
            if before is not None:
                losses.append(train(*before))
            before = batch
        losses.append(train(*before))
        noise = torch.randn(4)
        opt.zero_grad()
        loss = F.cross_entropy(model(X), Y, reduction="sum") / 44
        loss.backward()
        opt.step()
        losses.append(loss.item())
        """, setup=UNEVEN + TRAIN_ON, rank_local="before"),
    idiom("read ahead, and joined with another view", """
        before = None
        for batch in loader:
            if before is not None:
                losses.append(train(torch.cat([before[0], before[0]]), before[1].repeat(2)))
            before = batch
        losses.append(train(torch.cat([before[0], before[0]]), before[1].repeat(2)))
        """, setup=UNEVEN + TRAIN_ON, rank_local="before", notices="prefetched-batches"),
    idiom("a bare tensor after break", """
        for x, y in loader:
            if len(losses) == 3:
                break
            losses.append(train(x, y))
        weight = nn.Parameter(torch.ones(8))
        bare = torch.optim.SGD([weight], lr=0.01)
        loss = (X @ weight - Y).square().sum()
        loss.backward()
        bare.step()
        """, setup=UNEVEN + TRAIN_ON, curve=False),
    # ------------------------------------------------------------- without a loader
    idiom("no loader: the whole data", """
        for epoch in range(5):
            opt.zero_grad()
            loss = F.cross_entropy(model(X), Y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, split=False, notices="not-sharded"),
    idiom("no loader: random indices", """
        for step in range(6):
            picked = torch.randint(44, (8,))
            opt.zero_grad()
            loss = F.cross_entropy(model(X[picked]), Y[picked])
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, split=False, notices="not-sharded"),
    idiom("no loader: permuted slices", """
        for epoch in range(2):
            order = np.random.permutation(44)
            for start in range(0, 44, 8):
                part = order[start:start + 8]
                loss = F.cross_entropy(model(X[part]), Y[part])
                opt.zero_grad()
                loss.backward()
                opt.step()
                losses.append(loss.item())
        """, split=False, notices="not-sharded"),
    idiom("batch_size=None", """
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(x[None]), y[None])
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, batch_size=None, shuffle=True)",
        split=False, notices="not-sharded unsharded-batches"),
    idiom("the loader as a list", """
        batches = list(loader)
        for epoch in range(2):
            for x, y in batches:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, batch_size=7, shuffle=True)",
        split=False, notices="not-sharded"),
    idiom("data gathered from a loader, then trained on", """
        gathered = TensorDataset(*map(torch.cat, zip(*loader)))
        mean = sum(map(torch.mean, (x for x, y in loader))) / len(loader)
        for x, y in DataLoader(gathered, 8, shuffle=True):
            opt.zero_grad()
            loss = F.cross_entropy(model(x - mean), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, batch_size=7)"),
    idiom("some batches kept", """
        batches = [*itertools.islice(loader, 4)]
        for epoch in range(2):
            for x, y in batches:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                losses.append(loss.item())
        """, split=False, notices="not-sharded"),
    idiom("two loaders zipped under a name, several times", """
        pairs = zip(loader, others)
        for (x, y), (v, w) in itertools.islice(itertools.cycle(pairs), 9):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        del pairs
        """, setup="others = DataLoader(TensorDataset(X.flip(0), Y.flip(0)), 8)", rank_local="v w",
        split=False, notices="not-sharded"),
    idiom("two loaders zipped under a name, then listed under it", """
        pairs = zip(loader, others)
        pairs = list(pairs)
        for epoch in range(2):
            for (x, y), (v, w) in pairs:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                losses.append(loss.item())
        """, setup="others = DataLoader(TensorDataset(X.flip(0), Y.flip(0)), 8)", rank_local="v w",
        split=False, notices="not-sharded"),
    *(idiom(f"a sampler of many batches{more}", """
        batches = iter(loader)
        for step in range(9):
            x, y = next(batches)
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        del batches
        """, setup=f"""
        from torch.utils.data import RandomSampler
        often = RandomSampler(dataset, replacement=True, num_samples=10**10)
        loader = DataLoader(dataset, sampler=often, batch_size=8, num_workers={workers})
        """) for workers, more in enumerate(("", ", with a worker"))),
    idiom("a user-defined sampler without an end in torch's batch sampler", """
        for step, (x, y) in enumerate(loader):
            if step == 9:
                break
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="""
        class Endless(Sampler):
            def __iter__(self):
                while True:
                    yield from torch.randperm(44).tolist()

        loader = DataLoader(dataset, batch_sampler=BatchSampler(Endless(), 8, True))
        """),
    idiom("a progress bar around enumerate, under a name", """
        from tqdm import tqdm
        for epoch in range(2):
            bar = tqdm(enumerate(loader), total=len(loader))
            for step, (x, y) in bar:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                losses.append(loss.item())
                bar.set_postfix(loss=losses[-1])
            del bar
        """, setup="loader = DataLoader(dataset, batch_size=7, shuffle=True)"),
    idiom("two loaders zipped under a name, and one of them listed", """
        pairs = zip(loader, others)
        for (x, y), (v, w) in pairs:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        kept = list(enumerate(others))
        first = sum(float(x.sum()) for _, (x, y) in kept)
        del pairs, kept
        """, setup="others = DataLoader(TensorDataset(X.flip(0), Y.flip(0)), 8)", rank_local="v w"),
]  # fmt: skip
