"""Optimizers, schedulers, clipping, accumulation, precision."""

from idioms.idiom import TRAIN, idiom


def stepping(line: str, after: str = "opt.step()") -> str:
    """Return the training loop with one more line after another one."""
    return TRAIN.replace(f"        {after}\n", f"        {after}\n        {line}\n")


def clipped(line: str) -> str:
    """Return the training loop with a line before the step."""
    return stepping(line, "loss.backward()")


ADAM = "opt = torch.optim.AdamW(model.parameters(), lr=1e-2)\n"
CLOSURE = """
    for epoch in range(2):
        for x, y in loader:
            def closure():
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss
            losses.append(opt.step(closure).item())
"""
# LBFGS multiplies an error of 1e-7 by 1e6 in a dozen steps, on one device too.
DOUBLE = """
    model = Net().double()
    loader = DataLoader(TensorDataset(X[:24].double(), Y[:24]), batch_size=8)
"""

IDIOMS = [
    idiom("AdamW", setup=ADAM, ranks=(2, 3)),
    idiom("RMSprop, momentum", setup="""
        opt = torch.optim.RMSprop(model.parameters(), 1e-3, momentum=0.9)
        """),
    idiom("Adagrad", setup="opt = torch.optim.Adagrad(model.parameters(), lr=1e-2)"),
    idiom("NAdam, foreach=False", setup="""
        opt = torch.optim.NAdam(model.parameters(), lr=1e-2, foreach=False)
        """),
    idiom("AdamW, fused", setup="""
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        """),
    idiom("AdamW, amsgrad", setup="""
        opt = torch.optim.AdamW(model.parameters(), 1e-2, amsgrad=True)
        """),
    idiom("an own Optimizer", setup="""
        class Sign(torch.optim.Optimizer):
            def __init__(self, params, lr):
                super().__init__(params, {"lr": lr})

            @torch.no_grad()
            def step(self, closure=None):
                for group in self.param_groups:
                    for p in group["params"]:
                        if p.grad is not None:
                            state = self.state.setdefault(p, {"mean": torch.zeros_like(p)})
                            state["mean"].lerp_(p.grad, 0.1)
                            p.sub_(group["lr"] * state["mean"])

        opt = Sign(model.parameters(), 0.3)
        """),
    idiom("warm Adam from the kernel", setup=ADAM + """
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
        """),
    idiom("gradients from the kernel", "opt.step()\n" + TRAIN,
        setup="F.cross_entropy(model(X), Y).backward()"),
    idiom("load_state_dict of the optimizer", "opt.load_state_dict(saved)\n" + TRAIN,
        setup=ADAM + """
F.cross_entropy(model(X), Y).backward()
opt.step()
saved = copy.deepcopy(opt.state_dict())
opt.step()
        """),
    idiom("parameter groups", setup="""
        opt = torch.optim.AdamW([
            {"params": model.body.parameters(), "lr": 1e-3},
            {"params": model.head.parameters(), "weight_decay": 0.1},
        ], lr=1e-2)
        """),
    idiom("add_param_group in mid-training", """
        for epoch in range(3):
            if epoch == 1:
                opt.add_param_group({"params": model.body.parameters(), "lr": 0.01})
            for x, y in loader:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                losses.append(loss.item())
        """, setup="opt = torch.optim.SGD(model.head.parameters(), lr=0.1)"),
    idiom("a new optimizer in mid-training", """
        for lr in (0.1, 0.01):
            opt = torch.optim.Adam(model.parameters(), lr=lr)
            for x, y in loader:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                losses.append(loss.item())
        """),
    idiom("SparseAdam", """
        for x, y in loader:
            opt.zero_grad(); dense.zero_grad()
            loss = F.cross_entropy(head(table(x).mean(1)), y)
            loss.backward()
            opt.step(); dense.step()
            losses.append(loss.item())
        """, setup="""
        words = torch.randint(20, (44, 5))
        table, head = nn.Embedding(20, 8, sparse=True), nn.Linear(8, 4)
        opt = torch.optim.SparseAdam(table.parameters(), lr=1e-2)
        dense = torch.optim.Adam(head.parameters(), lr=1e-2)
        loader = DataLoader(TensorDataset(words, Y), batch_size=8)
        """, ranks=(2, 3)),
    idiom("SGD on a sparse embedding", """
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(head(table(x).mean(1)), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="""
        words = torch.randint(20, (44, 5))
        table, head = nn.Embedding(20, 8, sparse=True), nn.Linear(8, 4)
        opt = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.1)
        loader = DataLoader(TensorDataset(words, Y), batch_size=7)
        """),
    # ------------------------------------------------------------- closures
    idiom("SGD with a closure", CLOSURE, rank_local="closure"),
    idiom("LBFGS", CLOSURE, setup=DOUBLE + """
    opt = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    """, rank_local="closure", curve=False, atol=1e-4, ranks=(2, 3)),
    idiom("LBFGS, strong Wolfe", CLOSURE, setup=DOUBLE + """
    opt = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    """, rank_local="closure", curve=False, atol=1e-4),
    idiom("LBFGS made in the cell", """
    opt = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    """ + CLOSURE, setup=DOUBLE, rank_local="closure", curve=False, atol=1e-4, ranks=(2, 3)),
    idiom("LBFGS on the whole data", """
        def closure():
            opt.zero_grad()
            loss = F.cross_entropy(model(X), Y)
            loss.backward()
            losses.append(loss.item())
            return loss

        opt.step(closure)
        """, setup="opt = torch.optim.LBFGS(model.parameters(), line_search_fn='strong_wolfe')",
        split=False, notices="not-sharded"),
    # ------------------------------------------------------------- by hand
    idiom("SGD as written out", """
        for x, y in loader:
            model.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
            losses.append(loss.item())
        """, setup="del opt", split=False, notices="not-sharded"),
    idiom("SGD without its optimizer", """
        for x, y in loader:
            model.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(p.grad, alpha=-opt.param_groups[0]["lr"])
            losses.append(loss.item())
        """),
    idiom("bare tensors", """
        for x, y in loader:
            loss = F.cross_entropy(x @ weight + bias, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup="""
        weight = torch.randn(8, 4, requires_grad=True)
        bias = torch.zeros(4, requires_grad=True)
        opt = torch.optim.SGD([weight, bias], lr=0.1)
        """),
    idiom("bare tensors, updated in the cell", """
        for x, y in loader:
            loss = F.cross_entropy(x @ weight, y)
            loss.backward()
            weight.data -= 0.1 * weight.grad
            weight.grad = None
            losses.append(loss.item())
        """, setup="weight = torch.randn(8, 4, requires_grad=True)",
        split=False, notices="not-sharded"),
    # ------------------------------------------------------------- schedulers
    idiom("StepLR", stepping("sched.step()"),
        setup="sched = torch.optim.lr_scheduler.StepLR(opt, 3, 0.5)", ranks=(2, 3)),
    idiom("OneCycleLR", stepping("sched.step()"), setup="""
        sched = torch.optim.lr_scheduler.OneCycleLR(
            opt, max_lr=0.2, epochs=2, steps_per_epoch=len(loader))
        """),
    idiom("OneCycleLR, made in the cell", """
        sched = torch.optim.lr_scheduler.OneCycleLR(
            opt, max_lr=0.2, epochs=2, steps_per_epoch=len(loader))
        """ + stepping("sched.step()").replace("\n", "\n        ")),
    idiom("LambdaLR", stepping("sched.step()"), setup="""
        warmup = 4
        sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: min(1, (step + 1) / warmup))
        """),
    idiom("SequentialLR and cosine", stepping("sched.step()"), setup="""
        sched = torch.optim.lr_scheduler.SequentialLR(opt, [
            torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=3),
            torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=9),
        ], milestones=[3])
        """),
    idiom("a learning rate set in the cell", stepping(
        "opt.param_groups[0]['lr'] = 0.1 * 0.8 ** len(losses)")),
    idiom("ReduceLROnPlateau, training loss", """
        for epoch in range(6):
            total = 0.0
            for x, y in loader:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                total += loss.item()
            losses.append(total / len(loader))
            sched.step(losses[-1])
        """, setup="""
        sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, threshold=0.05)
        """),
    idiom("ReduceLROnPlateau, validation loss", """
        for epoch in range(4):
            for x, y in loader:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
            with torch.no_grad():
                losses.append(sum(F.cross_entropy(model(x), y).item() for x, y in val_loader))
            sched.step(losses[-1])
        """, setup="""
        sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, threshold=0.1)
        """),
    # ------------------------------------------------------------- clipping
    idiom("clip_grad_norm_", "norms = []\n" + clipped(
        "norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())"), ranks=(2, 3)),
    idiom("clip_grad_value_", clipped("nn.utils.clip_grad_value_(model.parameters(), 0.01)")),
    idiom("clipping a captured list", "params = list(model.parameters())\n" + clipped(
        "nn.utils.clip_grad_norm_(params, 0.1)"), ranks=(2, 3)),
    idiom("clipping written out", clipped(
        "[p.grad.clamp_(-0.02, 0.02) for p in model.parameters()]")),
    idiom("gradient norms read", "norms = []\n" + clipped(
        "norms.append(sum(p.grad.norm().item() ** 2 for p in model.parameters()) ** 0.5)")),
    # ------------------------------------------------------------- accumulation
    idiom("accumulation", """
        for epoch in range(2):
            for step, (x, y) in enumerate(loader):
                loss = F.cross_entropy(model(x), y) / 2
                loss.backward()
                losses.append(loss.item())
                if (step + 1) % 2 == 0:
                    opt.step()
                    opt.zero_grad()
        """, ranks=(2, 3)),
    idiom("accumulation, a shorter last group", """
        for step, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y) / 4
            loss.backward()
            losses.append(loss.item())
            if (step + 1) % 4 == 0 or step + 1 == len(loader):
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                opt.step()
                opt.zero_grad()
        """),
    idiom("accumulation that ends before a step", """
        for step, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y) / 4
            loss.backward()
            losses.append(loss.item())
            if step == 3:
                opt.step()
                opt.zero_grad(set_to_none=False)
        """),
    # ------------------------------------------------------------- precision
    idiom("GradScaler", """
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(opt)
            scaler.update()
            losses.append(loss.item())
        """, setup="scaler = torch.amp.GradScaler('cpu', growth_interval=3)", ranks=(2, 3)),
    idiom("GradScaler made in the cell, fp16", """
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 8, growth_interval=3)
        for x, y in loader:
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            losses.append(loss.item())
        """, rtol=1e-2, atol=1e-2),
    idiom("autocast to bfloat16", """
        for epoch in range(2):
            for x, y in loader:
                opt.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                losses.append(loss.item())
        """, rtol=3e-2, atol=1e-2),
    idiom("a bfloat16 model", TRAIN, setup="""
        X = X.bfloat16()
        model = Net().bfloat16()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(X, Y), batch_size=8)
        """, rtol=3e-2, atol=1e-2),
    idiom("a float64 model", TRAIN, setup="""
        model = Net().double()
        opt = torch.optim.Adam(model.parameters(), lr=1e-2)
        loader = DataLoader(TensorDataset(X.double(), Y), batch_size=7)
        """, rtol=1e-6, atol=1e-7),
    idiom("parts of different precision", TRAIN, setup="""
        class Mixed(Net):
            def forward(self, x):
                return self.head(torch.tanh(self.body(x)).double())

        model = Mixed()
        model.head.double()
        opt = torch.optim.Adam(model.parameters(), lr=1e-2)
        """),
]  # fmt: skip
