"""Where loaders are made, and how they load and collate their samples."""

from idioms.idiom import TRAIN, idiom

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
    idiom(
        "NumPy arrays",
        setup="""
        pairs = [(x, y) for x, y in zip(X.numpy(), Y.numpy())]
        loader = DataLoader(pairs, batch_size=8, shuffle=True)
        """,
    ),
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
        rank_local="lengths mask mean",
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
        rank_local="x2 y2",
    ),
    # ------------------------------------------------------------- workers
    idiom("one worker", setup="loader = DataLoader(dataset, 8, shuffle=True, num_workers=1)"),
    idiom("two workers", setup="loader = DataLoader(dataset, 8, shuffle=True, num_workers=2)"),
    idiom(
        "persistent workers",
        setup="""
        loader = DataLoader(dataset, 8, shuffle=True, num_workers=2, persistent_workers=True)
        """,
    ),
    # ------------------------------------------------------------- streams
    idiom(
        "IterableDataset",
        setup=STREAM + "\n    loader = DataLoader(Stream(), batch_size=8)",
        ranks=(2, 3),
    ),
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
    idiom(
        "IterableDataset, dicts",
        TRAIN.replace("x, y in", "batch in").replace(
            "model(x), y", "model(batch['x']), batch['y']"
        ),
        setup="""
        class Stream(IterableDataset):
            def __iter__(self):
                for i, (x, y) in enumerate(zip(X, Y)):
                    yield {"x": x, "y": y, "name": f"sample {i}", "weight": 1.5}

        loader = DataLoader(Stream(), batch_size=8)
        """,
    ),
]
