"""How cells iterate over loaders."""

from idioms.idiom import TRAIN, idiom

IDIOMS = [
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
        """ + TRAIN.replace("\n", "\n        "), rank_local="example", notices="not-trained",
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
        rank_local="it", notices="lost:it"),
    idiom("while (batch := next(it, None))", """
        it = iter(loader)
        while (batch := next(it, None)) is not None:
            x, y = batch
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, rank_local="it", notices="lost:it"),
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
    idiom("a break, and a generator of the loader's own", """
        for epoch in range(2):
            for i, (x, y) in enumerate(shuffled):
                if i == 3:
                    break
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                losses.append(loss.item())
        state = generator.get_state()
        """, setup="""
        generator = torch.Generator().manual_seed(3)
        shuffled = DataLoader(dataset, 8, shuffle=True, generator=generator)
        """, rank_local="x y"),
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
        rank_local="again x2 y2"),
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
        """, rank_local="bar", notices="lost:bar"),
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
        """, rank_local="batches", notices="lost:batches"),
    idiom("zip of two loaders", """
        for (x, y), (x2, _) in zip(loader, other):
            opt.zero_grad()
            out = model(x)
            loss = F.cross_entropy(out, y) + 0.1 * (model(x2) - out).pow(2).mean()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="other = DataLoader(TensorDataset(X + 0.1, Y), 8, shuffle=True)",
        rank_local="x2 _ out"),
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
        rank_local="x2 y2"),
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
        rank_local="x2 y2"),
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
        rank_local="x2 y2"),
]  # fmt: skip
