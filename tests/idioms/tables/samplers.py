"""How loaders choose samples, and how many a batch has."""

from idioms.idiom import TRAIN, idiom

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

IDIOMS = [
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
        "a sampler that reads the losses",
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
    idiom("break and start again", """
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
]  # fmt: skip
