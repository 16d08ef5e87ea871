"""Loops that do not train, beside loops that do."""

from idioms.idiom import TRAIN, idiom

STEP = """
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
"""

IDIOMS = [
    idiom("eval() and no_grad()", """
        accuracies = []
        for epoch in range(2):
            model.train()
            for x, y in loader:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                losses.append(loss.item())
            model.eval()
            correct = total = 0
            with torch.no_grad():
                for x, y in val_loader:
                    correct += (model(x).argmax(1) == y).sum().item()
                    total += len(y)
            accuracies.append(correct / total)
        """, ranks=(2, 3)),
    idiom("inference_mode()", TRAIN + """
model.eval()
with torch.inference_mode():
    outputs = torch.cat([model(x) for x, _ in val_loader])
    val_loss = sum(F.cross_entropy(model(x), y).item() * len(y) for x, y in val_loader) / 44
        """, rank_local="_"),
    idiom("no_grad() inside the loop", TRAIN + """
correct = 0
for x, y in val_loader:
    with torch.no_grad():
        correct += (model(x).argmax(1) == y).sum().item()
        """),
    idiom("eval() only", TRAIN + """
model.eval()
scores = []
for x, y in val_loader:
    scores.append(F.cross_entropy(model(x), y).item())
model.train()
        """),
    idiom("no_grad() without eval()", TRAIN + """
scores = []
with torch.no_grad():
    for x, y in val_loader:
        scores.append(F.cross_entropy(model(x), y).item())
        """),
    idiom("neither eval() nor no_grad()", TRAIN + """
scores = []
for x, y in val_loader:
    scores.append(F.cross_entropy(model(x), y).item())
        """),
    idiom("@torch.no_grad() on a function", """
        @torch.no_grad()
        def evaluate(model, loader):
            model.eval()
            total = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
            model.train()
            return total / len(loader.dataset)

        scores = [evaluate(model, val_loader)]
        for epoch in range(2):
            for x, y in loader:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                losses.append(loss.item())
            scores += [evaluate(model, loader), evaluate(model, val_loader)]
        """),
    idiom("run_epoch(train=True or False)", """
        def run_epoch(loader, train):
            model.train(train)
            sums = 0.0
            with torch.set_grad_enabled(train):
                for x, y in loader:
                    loss = F.cross_entropy(model(x), y)
                    if train:
                        opt.zero_grad()
                        loss.backward()
                        opt.step()
                    sums += loss.item()
            return sums / len(loader)

        for epoch in range(2):
            losses += [run_epoch(loader, True), run_epoch(val_loader, False)]
        """),
    idiom("for phase in [train, val]", """
        loaders = {"train": loader, "val": val_loader}
        best, best_score = copy.deepcopy(model.state_dict()), 1e9
        for epoch in range(3):
            for phase in ["train", "val"]:
                model.train(phase == "train")
                total = 0.0
                for x, y in loaders[phase]:
                    opt.zero_grad()
                    with torch.set_grad_enabled(phase == "train"):
                        loss = F.cross_entropy(model(x), y)
                        if phase == "train":
                            loss.backward()
                            opt.step()
                    total += loss.item()
                losses.append(total)
                if phase == "val" and total < best_score:
                    best, best_score = copy.deepcopy(model.state_dict()), total
        model.load_state_dict(best)
        """),
    idiom("in the middle of an epoch", """
        scores = []
        for step, (x, y) in enumerate(loader):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
            if step % 2 == 1:
                model.eval()
                with torch.no_grad():
                    scores.append(sum(F.cross_entropy(model(a), b).item() for a, b in val_loader))
                model.train()
        """, setup="loader = DataLoader(dataset, batch_size=8, shuffle=True)", ranks=(2, 3)),
    idiom("in the middle of a step", """
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            with torch.no_grad():
                scores = [F.cross_entropy(model(a), b).item() for a, b in val_loader]
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """),
    idiom("a shuffled evaluation in the middle of an epoch", """
        val_loader = DataLoader(dataset, batch_size=9, shuffle=True)
        for step, (x, y) in enumerate(loader):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
            with torch.no_grad():
                a, b = next(iter(val_loader))
                losses.append(F.cross_entropy(model(a), b).item())
        """, rank_local="_"),
    idiom("mean and standard deviation first", """
        total, squares, count = torch.zeros(8), torch.zeros(8), 0
        for x, _ in loader:
            total += x.sum(0)
            squares += (x ** 2).sum(0)
            count += len(x)
        mean = total / count
        std = (squares / count - mean ** 2).sqrt()
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model((x - mean) / std), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="loader = DataLoader(dataset, batch_size=8, shuffle=True)", rank_local="_"),
    idiom("labels counted first, for class weights", """
        counts = torch.zeros(4)
        for _, y in loader:
            counts += torch.bincount(y, minlength=4)
        criterion = nn.CrossEntropyLoss(weight=counts.sum() / counts)
        for x, y in loader:
            opt.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, rank_local="_"),
    idiom("early stopping", """
        best, patience, waited, epochs = math.inf, 2, 0, 0
        for epoch in range(12):
            model.train()
            for x, y in loader:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                losses.append(loss.item())
            model.eval()
            with torch.no_grad():
                val_loss = sum(F.cross_entropy(model(x), y).item() for x, y in val_loader)
            epochs += 1
            if val_loss < best:
                best, waited = val_loss, 0
                best_weights = {k: v.clone() for k, v in model.state_dict().items()}
            else:
                waited += 1
                if waited == patience:
                    break
        model.load_state_dict(best_weights)
        """, setup="""
        val_loader = DataLoader(TensorDataset(torch.randn(20, 8), torch.randint(4, (20,))), 9)
        """),
    idiom("stopping at a training loss", """
        for epoch in range(20):
            running = 0.0
            for x, y in loader:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                running += loss.item()
            losses.append(running / len(loader))
            if losses[-1] < 1.3:
                break
        """),
    idiom("the mean loss of an epoch", """
        for epoch in range(2):
            running_loss = 0.0
            for batch, (x, y) in enumerate(loader):
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                running_loss += loss.item()
            losses.append(running_loss / len(loader))
        """),
    idiom("loss.item() before backward()", """
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            early = loss.item()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, rank_local="early", notices="local-value-read"),
    idiom("detached losses, summed on the device", """
        total = torch.zeros(())
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            total += loss.detach()
            losses.append(loss)
        mean = total.item() / len(loader)
        losses = [loss.item() for loss in losses]
        """),
    idiom("features for a head", """
        model.eval()
        with torch.no_grad():
            features = torch.cat([torch.tanh(model.body(x)) for x, _ in loader])
        head = nn.Linear(12, 4)
        head_opt = torch.optim.SGD(head.parameters(), lr=0.1)
        for x, y in DataLoader(TensorDataset(features, Y), batch_size=8, shuffle=True):
            head_opt.zero_grad()
            loss = F.cross_entropy(head(x), y)
            loss.backward()
            head_opt.step()
            losses.append(loss.item())
        """, rank_local="_"),
    idiom("the best model, deepcopied", """
        best, best_loss = None, math.inf
        for epoch in range(3):
            for x, y in loader:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                losses.append(loss.item())
            with torch.no_grad():
                val_loss = F.cross_entropy(model(X[:9]), Y[:9]).item()
            if val_loss < best_loss:
                best, best_loss = copy.deepcopy(model), val_loss
        """),
    idiom("only evaluation", """
        model.eval()
        with torch.no_grad():
            outputs = torch.cat([model(x) for x, y in val_loader])
        """, split=False),
]  # fmt: skip
