"""Where loaders are made, and how they choose, load and join their samples."""

from idiom import TRAIN, idiom

LAZY = """
    class Lazy(Sampler):
        '''Draws one index at a time, also while the training goes on.'''
        def __iter__(self):
            for _ in range(40):
                yield {draw}
        def __len__(self):
            return 40

    loader = DataLoader(dataset, batch_size=8, sampler=Lazy())
"""

STREAM = """
    class Stream(IterableDataset):
        def __iter__(self):
            yield from zip(X, Y)
"""

BUFFER = """
    class Shuffled(IterableDataset):
        '''A shuffle buffer, as streams have.'''
        def __iter__(self):
            buffer = []
            for item in zip(X, Y):
                buffer.append(item)
                if len(buffer) == 10:
                    yield buffer.pop(random.randrange(10))
            random.shuffle(buffer)
            yield from buffer

    loader = DataLoader(Shuffled(), batch_size=8)
"""

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
    # ------------------------------------------------------------- where things are made
    idiom("plain", ranks=(2, 3)),
    idiom(
        "made in the cell",
        """
        model = Net()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
        loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
        """
        + TRAIN.replace("\n", "\n        "),
        ranks=(2, 3),
    ),
    idiom(
        "made in a function",
        """
        def train(lr):
            model = Net()
            opt = torch.optim.Adam(model.parameters(), lr=lr)
            loader = DataLoader(dataset, batch_size=8, shuffle=True)
            for x, y in loader:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                losses.append(loss.item())
            return model

        trained = [train(lr) for lr in (1e-2, 1e-3)]
        """,
    ),
    idiom(
        "a class with fit(), in the cell",
        """
        class Trainer:
            def __init__(self, lr):
                self.model = Net()
                self.opt = torch.optim.Adam(self.model.parameters(), lr=lr)
                self.history = []

            def step(self, batch):
                x, y = batch
                loss = F.cross_entropy(self.model(x), y)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                return loss.item()

            def fit(self, loader, epochs):
                for epoch in range(epochs):
                    self.history.append([self.step(batch) for batch in loader])

        trainer = Trainer(1e-2)
        trainer.fit(DataLoader(dataset, batch_size=7, shuffle=True), epochs=2)
        """,
    ),
    idiom(
        "a class with fit(), in the kernel",
        "trainer.fit(loader)",
        setup="""
        class Trainer:
            def __init__(self, model):
                self.model, self.steps, self.history = model, 0, {"loss": []}
                self.opt = torch.optim.Adam(model.parameters(), lr=1e-2)

            def fit(self, loader):
                for batch in loader:
                    self.training_step(batch)

            def training_step(self, batch):
                x, y = batch
                loss = nn.functional.cross_entropy(self.model(x), y)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                self.steps += 1
                self.history["loss"].append(loss.item())

        trainer = Trainer(model)
        """,
    ),
    idiom(
        "a training function of the kernel",
        "history = train(model, loader, opt, epochs=2)",
        setup="""
        def train_step(model, batch, opt):
            x, y = batch
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            opt.zero_grad()
            return loss.item()

        def train(model, loader, opt, epochs):
            history = []
            for epoch in range(epochs):
                for batch in loader:
                    history.append(train_step(model, batch, opt))
            return history
        """,
    ),
    # ------------------------------------------------------------- samplers
    idiom(
        "shuffle, three epochs",
        TRAIN.replace("range(2)", "range(3)"),
        setup="loader = DataLoader(dataset, batch_size=8, shuffle=True)",
        ranks=(2, 3),
    ),
    idiom(
        "shuffle with a generator",
        setup="""
        generator = torch.Generator().manual_seed(7)
        loader = DataLoader(dataset, batch_size=8, shuffle=True, generator=generator)
        """,
    ),
    idiom(
        "a generator made in the cell",
        "loader = DataLoader(dataset, 8, True, generator=torch.Generator().manual_seed(1))\n"
        + TRAIN,
    ),
    idiom(
        "WeightedRandomSampler",
        setup="""
        sampler = WeightedRandomSampler(torch.arange(1.0, 45.0), 30)
        loader = DataLoader(dataset, batch_size=8, sampler=sampler)
        """,
    ),
    idiom(
        "SubsetRandomSampler",
        setup="loader = DataLoader(dataset, batch_size=8, sampler=SubsetRandomSampler(range(30)))",
    ),
    idiom("a lazy sampler, torch", setup=LAZY.format(draw="torch.randint(44, ()).item()")),
    idiom("a lazy sampler, random", setup=LAZY.format(draw="random.randrange(44)"), ranks=(2, 3)),
    idiom("a lazy sampler, numpy", setup=LAZY.format(draw="np.random.randint(44)")),
    idiom(
        "a batch_sampler of uneven batches",
        setup="""
        class Batches:
            def __iter__(self):
                order = torch.randperm(44).tolist()
                start = 0
                for size in (1, 9, 4, 7, 3, 2, 8, 5):
                    yield order[start:start + size]
                    start += size
            def __len__(self):
                return 8

        loader = DataLoader(dataset, batch_sampler=Batches())
        """,
        ranks=(2, 3),
    ),
    idiom(
        "an endless batch_sampler, left by break",
        """
        for step, (x, y) in enumerate(loader):
            if step == 9:
                break
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """,
        setup="""
        class Endless:
            def __iter__(self):
                while True:
                    yield torch.randint(44, (8,)).tolist()

        loader = DataLoader(dataset, batch_sampler=Endless())
        """,
    ),
    idiom(
        "a sampler that looks at the losses",
        setup="""
        class Hard(Sampler):
            '''Repeats a sample while the loss is high.'''
            def __iter__(self):
                for i in range(44):
                    yield i
                    if losses and losses[-1] > 1.3:
                        yield i

        loader = DataLoader(dataset, batch_size=4, sampler=Hard())
        """,
    ),
    idiom("break and start anew", """
        for epoch in range(3):
            for step, (x, y) in enumerate(loader):
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                losses.append(loss.item())
                if step == epoch:
                    break
        """, setup="loader = DataLoader(dataset, batch_size=8, shuffle=True)"),
    # ------------------------------------------------------------- sizes
    idiom("drop_last", setup="loader = DataLoader(dataset, batch_size=8, drop_last=True)"),
    idiom("a last batch of one sample", setup="""
        loader = DataLoader(Subset(dataset, range(33)), batch_size=8)
        """, ranks=(2, 3)),
    idiom("batches of one sample", setup="""
        loader = DataLoader(Subset(dataset, range(6)), batch_size=1)
        """, ranks=(2, 3)),
    idiom("batches of two, three ranks", setup="""
        loader = DataLoader(Subset(dataset, range(9)), batch_size=2)
        """, ranks=(3,)),
    idiom("batches of odd size", setup="loader = DataLoader(dataset, batch_size=7)", ranks=(2, 3)),
    idiom("one batch for all", setup="loader = DataLoader(dataset, batch_size=100)"),
    # ------------------------------------------------------------- datasets
    idiom(
        "an own Dataset of dicts",
        """
        for batch in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(batch["x"]), batch["label"])
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """,
        setup="""
        class Samples(Dataset):
            def __len__(self):
                return len(X)
            def __getitem__(self, i):
                return {"x": X[i], "label": Y[i], "name": f"sample {i}"}

        loader = DataLoader(Samples(), batch_size=8, shuffle=True)
        """,
    ),
    idiom(
        "random_split and ConcatDataset",
        """
        first, second = random_split(dataset, [30, 14])
        loader = DataLoader(ConcatDataset([first, second, first]), batch_size=9, shuffle=True)
        """
        + TRAIN.replace("\n", "\n        "),
    ),
    idiom("a list of pairs", setup="loader = DataLoader(list(zip(X, Y)), batch_size=8)"),
    idiom("NumPy arrays", setup="""
        pairs = [(x, y) for x, y in zip(X.numpy(), Y.numpy())]
        loader = DataLoader(pairs, batch_size=8, shuffle=True)
        """),
    # ------------------------------------------------------------- collate_fn
    idiom(
        "collate_fn to dicts, with strings",
        """
        for batch in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(batch["x"]), batch["y"])
            loss.backward()
            opt.step()
            losses.append(loss.item())
            assert len(batch["names"]) == len(batch["x"])
        """,
        setup="""
        def collate(samples):
            xs, ys = zip(*samples)
            names = [f"class {y}" for y in ys]
            return {"x": torch.stack(xs), "y": torch.stack(ys), "names": names}

        loader = DataLoader(dataset, batch_size=8, shuffle=True, collate_fn=collate)
        """,
    ),
    idiom(
        "collate_fn to a namedtuple",
        TRAIN.replace("x, y in", "batch in").replace("model(x), y", "model(batch.x), batch.y"),
        setup="""
        Pair = namedtuple("Pair", "x y")

        def collate(samples):
            return Pair(*map(torch.stack, zip(*samples)))

        loader = DataLoader(dataset, batch_size=8, collate_fn=collate)
        """,
    ),
    idiom(
        "collate_fn that pads",
        """
        for x, lengths, y in loader:
            opt.zero_grad()
            mask = torch.arange(x.shape[1]) < lengths[:, None]
            mean = (net(x) * mask[..., None]).sum(1) / lengths[:, None]
            loss = F.cross_entropy(mean, y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """,
        setup="""
        sequences = [torch.randn(1 + i % 5, 8) for i in range(44)]
        net = Net()
        opt = torch.optim.Adam(net.parameters(), lr=1e-2)

        def collate(samples):
            sequences, ys = zip(*samples)
            padded = nn.utils.rnn.pad_sequence(sequences, batch_first=True)
            return padded, torch.tensor([len(s) for s in sequences]), torch.stack(ys)

        loader = DataLoader(list(zip(sequences, Y)), 8, shuffle=True, collate_fn=collate)
        """,
        notices="padded",
        shares="lengths mask mean",
    ),
    idiom(
        "another collate_fn in the second epoch",
        """
        for epoch in range(2):
            loader.collate_fn = by_epoch[epoch]
            for x, y in loader:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                losses.append(loss.item())
        """,
        setup="""
        collate = torch.utils.data.default_collate
        by_epoch = [collate, lambda samples: collate([(2 * x, y) for x, y in samples])]
        """,
    ),
    # ------------------------------------------------------------- left over
    idiom(
        "squeezed outputs, and three samples in the last batch",
        """
        for epoch in range(2):
            for x, y in loader:
                opt.zero_grad()
                loss = F.binary_cross_entropy_with_logits(model(x).squeeze(), y)
                loss.backward()
                opt.step()
                losses.append(loss.item())
        """,
        setup="""
        model = Net(classes=1)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(X[:43], (Y[:43] > 1).float()), batch_size=8)
        """,
    ),
    idiom(
        "a step on all of the data behind two loaders that end together",
        """
        for (x, y), (x2, y2) in zip(loader, other):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y) + F.cross_entropy(model(x2), y2)
            loss.backward()
            opt.step()
        opt.zero_grad()
        (F.cross_entropy(model(X), Y, reduction="sum") / 100).backward()
        opt.step()
        """,
        setup="other = DataLoader(TensorDataset(X.flip(0), Y.flip(0)), batch_size=8)",
        shares="x2 y2",
    ),
    # ------------------------------------------------------------- workers
    idiom("one worker", setup="loader = DataLoader(dataset, 8, shuffle=True, num_workers=1)"),
    idiom("two workers", setup="loader = DataLoader(dataset, 8, shuffle=True, num_workers=2)"),
    idiom("persistent workers", setup="""
        loader = DataLoader(dataset, 8, shuffle=True, num_workers=2, persistent_workers=True)
        """),
    # ------------------------------------------------------------- streams
    idiom("IterableDataset", setup=STREAM + "\n    loader = DataLoader(Stream(), batch_size=8)",
          ranks=(2, 3)),
    idiom("IterableDataset, a shuffle buffer", setup=BUFFER),
    idiom(
        "IterableDataset, two workers",
        setup="""
        class Stream(IterableDataset):
            def __iter__(self):
                info = torch.utils.data.get_worker_info()
                yield from list(zip(X, Y))[info.id::info.num_workers]

        loader = DataLoader(Stream(), batch_size=5, num_workers=2)
        """,
    ),
    idiom("IterableDataset, dicts", TRAIN.replace("x, y in", "batch in").replace(
        "model(x), y", "model(batch['x']), batch['y']"), setup="""
        class Stream(IterableDataset):
            def __iter__(self):
                for i, (x, y) in enumerate(zip(X, Y)):
                    yield {"x": x, "y": y, "name": f"sample {i}", "weight": 1.5}

        loader = DataLoader(Stream(), batch_size=8)
        """),
    # ------------------------------------------------------------- ways to iterate
    idiom("next(iter(loader)) first", """
        example, label = next(iter(loader))
        width = example.shape
        """ + TRAIN.replace("\n", "\n        "),
        setup="loader = DataLoader(dataset, batch_size=8, shuffle=True)"),
    idiom("peek(loader) first", """
        def peek(loader):
            it = iter(loader)
            return next(it)

        example = peek(loader)
        """ + TRAIN.replace("\n", "\n        "), shares="example", notices="not-trained",
        setup="loader = DataLoader(dataset, batch_size=8, shuffle=True)"),
    idiom("it = iter(loader); next(it)", """
        it = iter(loader)
        step = 0
        while step < 9:
            try:
                x, y = next(it)
            except StopIteration:
                it = iter(loader)
                x, y = next(it)
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
            step += 1
        """, setup="loader = DataLoader(dataset, batch_size=8, shuffle=True)",
        shares="it", notices="lost:it"),
    idiom("while (batch := next(it, None))", """
        it = iter(loader)
        while (batch := next(it, None)) is not None:
            x, y = batch
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, shares="it", notices="lost:it"),
    idiom("itertools.cycle", """
        for step, (x, y) in zip(range(9), itertools.cycle(loader)):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """),
    idiom("itertools.cycle, and means over class weights", """
        criterion = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 3.0, 0.5]))
        for step, (x, y) in zip(range(20), itertools.cycle(loader)):
            opt.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(TensorDataset(X[:43], Y[:43]), 8, shuffle=True)"),
    idiom("a cycle beside a loader", """
        again = itertools.cycle(other)
        for x, y in loader:
            x2, y2 = next(again)
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y) + 0.5 * F.cross_entropy(model(x2), y2)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="other = DataLoader(TensorDataset(X[:16] * 0.9, Y[:16]), 8)",
        shares="again x2 y2"),
    idiom("itertools.islice", """
        for x, y in itertools.islice(loader, 3):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """),
    idiom("enumerate(tqdm(loader))", """
        from tqdm import tqdm

        bar = tqdm(loader, desc="training", disable=False, file=None)
        for i, (x, y) in enumerate(bar):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
            bar.set_postfix(loss=loss.item())
        """, shares="bar", notices="lost:bar"),
    idiom("an endless generator over the loader", """
        def endless(loader):
            while True:
                for batch in loader:
                    yield batch

        batches = endless(loader)
        for step in range(9):
            x, y = next(batches)
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, shares="batches", notices="lost:batches"),
    idiom("zip of two loaders", """
        for (x, y), (x2, _) in zip(loader, other):
            opt.zero_grad()
            out = model(x)
            loss = F.cross_entropy(out, y) + 0.1 * (model(x2) - out).pow(2).mean()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="other = DataLoader(TensorDataset(X + 0.1, Y), 8, shuffle=True)",
        shares="x2 _"),
    idiom("two tasks, a loader each, in turn", """
        for (x, y), (x2, y2) in zip(loader, other):
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
            loss = F.cross_entropy(model(x2), y2)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="other = DataLoader(TensorDataset(X + 0.1, Y), 6, shuffle=True)",
        shares="x2 y2"),
    idiom("a loader within a loader", """
        for x, y in loader:
            for x2, y2 in inner:
                loss = F.cross_entropy(model(x2), y2)
                opt.zero_grad()
                loss.backward()
                opt.step()
                losses.append(loss.item())
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="inner = DataLoader(TensorDataset(X[:10] + 0.1, Y[:10]), 4)",
        shares="x2 y2"),
    idiom("two passes over a loader within another", """
        for x, y in loader:
            for again in range(2):
                for x2, y2 in inner:
                    loss = F.cross_entropy(model(x2), y2)
                    opt.zero_grad()
                    loss.backward()
                    opt.step()
                    losses.append(loss.item())
            loss = 0.1 * F.cross_entropy(model(x), y, reduction="sum")
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="inner = DataLoader(TensorDataset(X[:10] + 0.1, Y[:10]), 4)",
        shares="x2 y2"),
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
        """, setup=UNEVEN, shares="following", ranks=(2, 3), notices="lost:batches"),
    idiom("one batch behind in a for loop", """
        for epoch in range(2):
            before = None
            for batch in loader:
                if before is not None:
                    losses.append(train(*before))
                before = batch
            losses.append(train(*before))
        """, setup=UNEVEN + TRAIN_ON, shares="before", ranks=(2, 3)),
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
        """, setup=UNEVEN + TRAIN_ON, ranks=(2, 3), notices="reads-ahead"),
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
        """, setup=UNEVEN + TRAIN_ON, shares="ahead", notices="lost:batches"),
    idiom("batches that are left out", """
        for epoch in range(2):
            for number, (x, y) in enumerate(loader):
                if number % 3 == 1:
                    continue
                losses.append(train(x, y))
        """, setup=UNEVEN + TRAIN_ON, ranks=(2, 3)),
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
        """, setup=UNEVEN + TRAIN_ON, shares="before"),
    idiom("read ahead, and joined with another view", """
        before = None
        for batch in loader:
            if before is not None:
                losses.append(train(torch.cat([before[0], before[0]]), before[1].repeat(2)))
            before = batch
        losses.append(train(torch.cat([before[0], before[0]]), before[1].repeat(2)))
        """, setup=UNEVEN + TRAIN_ON, shares="before", notices="reads-ahead"),
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
        split=False, notices="not-sharded whole-batches"),
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
    idiom("two loaders zipped under a name, again and again", """
        pairs = zip(loader, others)
        for (x, y), (v, w) in itertools.islice(itertools.cycle(pairs), 9):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        del pairs
        """, setup="others = DataLoader(TensorDataset(X.flip(0), Y.flip(0)), 8)", shares="v w",
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
        """, setup="others = DataLoader(TensorDataset(X.flip(0), Y.flip(0)), 8)", shares="v w",
        split=False, notices="not-sharded"),
    *(idiom(f"a sampler that hardly ends{more}", """
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
    idiom("a sampler of one's own in torch's batch sampler, without an end", """
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
        """, setup="others = DataLoader(TensorDataset(X.flip(0), Y.flip(0)), 8)", shares="v w"),
]  # fmt: skip
