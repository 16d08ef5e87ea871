"""Models: several, shared, frozen, partly used, called in all ways."""

from idiom import TRAIN, idiom


def step(forward: str, *, loader: str = "x, y in loader") -> str:
    """Return a loop whose forward pass is ``forward``."""
    return f"""
for {loader}:
    opt.zero_grad()
    {forward}
    loss.backward()
    opt.step()
    losses.append(loss.item())
"""


SEQUENCES = """
    sequences = torch.randn(44, 6, 8)
    lengths = torch.randint(1, 7, (44,))
    loader = DataLoader(TensorDataset(sequences, lengths, Y), batch_size=7, shuffle=True)
"""

IDIOMS = [
    # ------------------------------------------------------------- several
    idiom("a GAN, noise from the data", """
        for x, z in loader:
            fake = generator(z)
            real_score, fake_score = critic(x), critic(fake.detach())
            d_loss = (F.binary_cross_entropy_with_logits(real_score, torch.ones_like(real_score))
                      + F.binary_cross_entropy_with_logits(fake_score, 0 * fake_score.detach()))
            d_opt.zero_grad()
            d_loss.backward()
            d_opt.step()
            score = critic(fake)
            g_loss = F.binary_cross_entropy_with_logits(score, torch.ones_like(score))
            g_opt.zero_grad()
            g_loss.backward()
            g_opt.step()
            losses.append((d_loss.item(), g_loss.item()))
        """, setup="""
        generator, critic = Net(3, 8), Net(8, 1)
        g_opt = torch.optim.Adam(generator.parameters(), lr=1e-2, betas=(0.5, 0.9))
        d_opt = torch.optim.Adam(critic.parameters(), lr=1e-2, betas=(0.5, 0.9))
        loader = DataLoader(TensorDataset(X, torch.randn(44, 3)), batch_size=7, shuffle=True)
        """, shares="z fake real_score fake_score score", ranks=(2, 3)),
    idiom("two optimizers on one model", """
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            body_opt.zero_grad(); head_opt.zero_grad()
            loss.backward()
            body_opt.step(); head_opt.step()
            losses.append(loss.item())
        """, setup="""
        body_opt = torch.optim.SGD(model.body.parameters(), lr=0.1)
        head_opt = torch.optim.Adam(model.head.parameters(), lr=1e-2)
        """, ranks=(2, 3)),
    idiom("one optimizer on two models", step(
        "loss = F.cross_entropy(head(torch.tanh(body(x))), y)"), setup="""
        body, head = nn.Linear(8, 12), nn.Linear(12, 4)
        opt = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-2)
        """),
    idiom("two models and two losses in turn", """
        for x, y in loader:
            loss_a = F.cross_entropy(a(x), y)
            loss_b = F.cross_entropy(b(x), y)
            for o, l in ((opt_a, loss_a), (opt_b, loss_b)):
                o.zero_grad()
                l.backward()
                o.step()
            losses.append((loss_a.item(), loss_b.item()))
        """, setup="""
        a, b = Net(), Net()
        opt_a = torch.optim.SGD(a.parameters(), lr=0.1)
        opt_b = torch.optim.Adam(b.parameters(), lr=1e-2)
        """),
    idiom("two models, one backward of the sum", """
        for x, y in loader:
            out = a(x)
            loss = F.cross_entropy(out, y) + F.mse_loss(b(x), out.detach())
            opt_a.zero_grad(); opt_b.zero_grad()
            loss.backward()
            opt_a.step(); opt_b.step()
            losses.append(loss.item())
        """, setup="""
        a, b = Net(), Net()
        opt_a = torch.optim.SGD(a.parameters(), lr=0.1)
        opt_b = torch.optim.Adam(b.parameters(), lr=1e-2)
        """),
    idiom("an ensemble in a list", """
        for net, o in zip(nets, opts):
            for x, y in loader:
                o.zero_grad()
                loss = F.cross_entropy(net(x), y)
                loss.backward()
                o.step()
                losses.append(loss.item())
        """, setup="""
        nets = [Net() for _ in range(3)]
        opts = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
        """),
    # ------------------------------------------------------------- frozen, unused, shared
    idiom("frozen parts", setup="""
        model.body.requires_grad_(False)
        opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        """, ranks=(2, 3)),
    idiom("frozen parts that the optimizer has too", setup="model.body.requires_grad_(False)"),
    idiom("unfreezing in mid-training", """
        for epoch in range(3):
            if epoch == 1:
                model.body.requires_grad_(True)
            if epoch == 2:
                for p in model.head.parameters():
                    p.requires_grad = False
            for x, y in loader:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                losses.append(loss.item())
        """, setup="model.body.requires_grad_(False)"),
    idiom("a teacher", """
        teacher.eval()
        for x, y in loader:
            with torch.no_grad():
                target = teacher(x).softmax(1)
            out = model(x)
            soft = F.kl_div(out.log_softmax(1), target, reduction="batchmean")
            loss = 0.5 * F.cross_entropy(out, y) + 0.5 * soft
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append((loss.item(), soft.item()))
        """, setup="teacher = Net()", shares="target"),
    idiom("an EMA copy", """
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
            with torch.no_grad():
                for slow, fast in zip(ema.parameters(), model.parameters()):
                    slow.mul_(0.9).add_(fast, alpha=0.1)
        """, setup="ema = copy.deepcopy(model).requires_grad_(False)"),
    idiom("AveragedModel", """
        averaged = torch.optim.swa_utils.AveragedModel(model)
        for epoch in range(2):
            for x, y in loader:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                losses.append(loss.item())
            averaged.update_parameters(model)
        """),
    idiom("a deepcopy trained in the cell", """
        student = copy.deepcopy(model)
        opt = torch.optim.SGD(student.parameters(), lr=0.1)
        """ + step("loss = F.cross_entropy(student(x), y)").replace("\n", "\n        ")),
    idiom("deepcopies for the inner loop, MAML's first order", """
        for x, y in loader:
            fast = copy.deepcopy(model)
            inner = torch.optim.SGD(fast.parameters(), lr=0.1)
            for _ in range(2):
                loss = F.cross_entropy(fast(x), y)
                inner.zero_grad()
                loss.backward()
                inner.step()
            opt.zero_grad()
            outer = F.cross_entropy(fast(x), y)
            outer.backward()
            for p, q in zip(model.parameters(), fast.parameters()):
                p.grad = q.grad.clone()
            opt.step()
            losses.append(outer.item())
        """, setup="loader = DataLoader(dataset, 7)", shares="_", curve=False),
    idiom("unused parameters", setup="""
        model.spare = nn.Linear(5, 5)
        opt = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
        """, ranks=(2, 3)),
    idiom("parameters used in some steps", step("""
    out = model(x)
    if len(losses) % 3 == 0:
        out = out + extra(x)
    loss = F.cross_entropy(out, y)
    """.strip().replace("\n", "\n")), setup="""
        extra = nn.Linear(8, 4)
        opt = torch.optim.Adam([*model.parameters(), *extra.parameters()], lr=1e-2)
        """),
    idiom("parameters used for some samples", step(
        "loss = F.cross_entropy(model(x), y)"), setup="""
        class Routed(nn.Module):
            '''Each sample goes to one expert; some experts get none.'''
            def __init__(self):
                super().__init__()
                self.experts = nn.ModuleList(nn.Linear(8, 4) for _ in range(4))

            def forward(self, x):
                out = torch.zeros(len(x), 4)
                chosen = (x[:, 0] * 2).long().clamp(-1, 2) + 1
                for i, expert in enumerate(self.experts):
                    rows = chosen == i
                    if rows.any():
                        out = out.index_put((rows,), expert(x[rows]))
                return out

        model = Routed()
        opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        loader = DataLoader(dataset, batch_size=3)
        """, ranks=(2, 3)),
    idiom("outputs that the loss does not use", step(
        "logits, features, aux = model(x); loss = F.cross_entropy(logits, y)"), setup="""
        class Two(Net):
            def __init__(self):
                super().__init__()
                self.aux = nn.Linear(12, 2)

            def forward(self, x):
                features = torch.tanh(self.body(x))
                return self.head(features), features, self.aux(features)

        model = Two()
        opt = torch.optim.Adam(model.parameters(), lr=1e-2)
        """, shares="logits features aux"),
    idiom("weight tying", step("loss = F.cross_entropy(model(x).mean(1), y)"), setup="""
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = nn.Embedding(20, 8)
                self.mix = nn.Linear(8, 8)
                self.out = nn.Linear(8, 20, bias=False)
                self.out.weight = self.table.weight

            def forward(self, x):
                return self.out(self.mix(self.table(x)))

        model = Tied()
        opt = torch.optim.Adam(model.parameters(), lr=1e-2)
        words = torch.randint(20, (44, 5))
        loader = DataLoader(TensorDataset(words, words[:, 0]), batch_size=7, shuffle=True)
        """, ranks=(2, 3)),
    # ------------------------------------------------------------- ways to call
    idiom("model.forward(x)", step("loss = F.cross_entropy(model.forward(x), y)")),
    idiom("a method of the model", step("loss = model.loss(x, y)"), setup="""
        class WithLoss(Net):
            def loss(self, x, y):
                return F.cross_entropy(self(x), y)

        model = WithLoss()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        """),
    idiom("parts of the model called", step(
        "loss = F.cross_entropy(model.head(torch.tanh(model.body(x))), y)")),
    idiom("two forwards, one backward", step(
        "loss = F.cross_entropy(model(x), y) + F.cross_entropy(model(x * 0.5), y)"), ranks=(2, 3)),
    idiom("a loss dictionary from the model", step(
        "parts = model(x, y); loss = sum(parts.values())"), setup="""
        class Detector(Net):
            def forward(self, x, y):
                out = super().forward(x)
                return {"class": F.cross_entropy(out, y), "size": out.pow(2).mean()}

        model = Detector()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        """, shares="parts"),
    idiom("a model that counts its calls", setup="""
        class Counting(Net):
            calls = 0

            def forward(self, x):
                self.calls += 1
                return super().forward(x)

        model = Counting()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        """),
    idiom("reset_parameters in the cell", """
        model.body.reset_parameters()
        nn.init.orthogonal_(model.head.weight)
        """ + TRAIN.replace("\n", "\n        ")),
    idiom("a layer replaced in the cell", """
        model.head = nn.Linear(12, 4)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        """ + TRAIN.replace("\n", "\n        ")),
    # ------------------------------------------------------------- torch's own wrappers
    idiom("checkpoint, reentrant", step("""
    hidden = checkpoint(model.body, x.requires_grad_(), use_reentrant=True)
    loss = F.cross_entropy(model.head(torch.tanh(hidden)), y)
    """.strip()), setup="from torch.utils.checkpoint import checkpoint", shares="hidden",
        ranks=(2, 3)),
    idiom("checkpoint, not reentrant", step("""
    hidden = checkpoint(model.body, x, use_reentrant=False)
    loss = F.cross_entropy(model.head(torch.tanh(hidden)), y)
    """.strip()), setup="from torch.utils.checkpoint import checkpoint", shares="hidden"),
    idiom("checkpoint, reentrant, a layer used twice", step("""
    hidden = checkpoint(model.body, x.requires_grad_(), use_reentrant=True)
    again = checkpoint(model.body, torch.tanh(hidden[:, :8]), use_reentrant=True)
    loss = F.cross_entropy(model.head(again), y)
    """.strip()), setup="from torch.utils.checkpoint import checkpoint", shares="hidden again"),
    idiom("torch.func.functional_call", step("""
    params = dict(model.named_parameters())
    loss = F.cross_entropy(torch.func.functional_call(model, params, x), y)
    """.strip()), shares="params"),
    idiom("torch.func.grad, a manual step", """
        def loss_of(params, x, y):
            return F.cross_entropy(torch.func.functional_call(model, params, (x,)), y)

        for x, y in loader:
            params = {k: v.detach() for k, v in model.named_parameters()}
            grads = torch.func.grad(loss_of)(params, x, y)
            with torch.no_grad():
                for k, p in model.named_parameters():
                    p -= 0.1 * grads[k]
        """, setup="loader = DataLoader(dataset, 7)", shares="grads", split=False),
    idiom("weight_norm", """
        model = Net()
        nn.utils.parametrizations.weight_norm(model.body)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        """ + TRAIN.replace("\n", "\n        ")),
    idiom("weight_norm in the kernel", setup="""
        nn.utils.parametrizations.weight_norm(model.body)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        """),
    idiom("spectral_norm", setup="""
        nn.utils.parametrizations.spectral_norm(model.body)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        """),
    idiom("a parametrization of one's own", setup="""
        class Symmetric(nn.Module):
            def forward(self, w):
                return w.triu() + w.triu(1).mT

        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
        nn.utils.parametrize.register_parametrization(model[0], "weight", Symmetric())
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        """),
    idiom("an LSTM", step("loss = F.cross_entropy(head(lstm(x)[0][:, -1]), y)",
        loader="x, n, y in loader"), setup=SEQUENCES + """
    lstm, head = nn.LSTM(8, 10, num_layers=2, batch_first=True), nn.Linear(10, 4)
    opt = torch.optim.SGD([*lstm.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
        """, shares="n"),
    idiom("packed sequences", step("""
    packed = nn.utils.rnn.pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False)
    loss = F.cross_entropy(head(lstm(packed)[1][0][-1]), y)
    """.strip(), loader="x, n, y in loader"), setup=SEQUENCES + """
    lstm, head = nn.LSTM(8, 10, batch_first=True), nn.Linear(10, 4)
    opt = torch.optim.Adam([*lstm.parameters(), *head.parameters()], lr=1e-2)
        """, shares="n packed", ranks=(2, 3)),
    idiom("hidden state carried over, truncated", """
        hidden = torch.zeros(1, 12)
        for x, y in loader:
            hidden = torch.tanh(model.body(x.mean(0, keepdim=True)) + hidden.detach())
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, shares="hidden"),
    idiom("a Transformer encoder", step(
        "loss = F.cross_entropy(head(encoder(x).mean(1)), y)", loader="x, n, y in loader"),
        setup=SEQUENCES + """
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", batch_first=True)
    encoder, head = nn.TransformerEncoder(layer, 2), nn.Linear(8, 4)
    opt = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.05)
        """, shares="n"),
    idiom("convolutions and layer normalisation", step(
        "loss = F.cross_entropy(model(x.view(-1, 1, 2, 4)), y)"), setup="""
        model = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.GELU(), nn.GroupNorm(2, 6), nn.Flatten(),
            nn.LayerNorm(48), nn.Linear(48, 4))
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        """),
    idiom("batch normalisation, frozen", """
        model.eval()
        for epoch in range(2):
            model[3].train()
            for x, y in loader:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                losses.append(loss.item())
        """, setup="""
        model = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 4))
        model.train()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        """, split=False, notices="not-sharded"),
    idiom("heads in a list, an optimizer each, for parts of a batch", """
        for x, y in loader:
            h = torch.tanh(body(x))
            loss = sum(
                F.cross_entropy(head(h[at]), y[at], reduction="sum")
                for k, head in enumerate(heads) if (at := x[:, 0].sign() == 2 * k - 1).any()
            )
            for o in opts:
                o.zero_grad()
            loss.backward()
            for o in opts:
                o.step()
            losses.append(loss.item())
        """, setup="""
        X[:, 0] = torch.tensor([-1.0] * 4 + [1.0] * 4).repeat(6)[:44]
        body, heads = nn.Linear(8, 12), [nn.Linear(12, 4), nn.Linear(12, 4)]
        opts = [torch.optim.SGD(m.parameters(), lr=0.02) for m in (body, *heads)]
        loader = DataLoader(TensorDataset(X, Y), 8)
        """, shares="h at", ranks=(2, 3)),
    idiom("a mean that forward() writes into a buffer", TRAIN, setup="""
        class Centred(Net):
            def __init__(self):
                super().__init__()
                self.register_buffer("centre", torch.zeros(8))

            def forward(self, x):
                out = super().forward(x - self.centre)
                if self.training:
                    self.centre.mul_(0.9).add_(0.1 * x.mean(0))
                return out

        model = Centred()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        """, notices="averaged-buffer", ranks=(2, 3)),
    idiom("trained in eval()", "model.eval()\n" + TRAIN, split=False, notices="not-sharded"),
    idiom("forward hooks", TRAIN, setup="""
        seen = []
        handle = model.body.register_forward_hook(lambda m, args, out: seen.append(out.ndim))
        """),
    idiom("gradient hooks on a module", TRAIN, setup="""
        def half(module, grads_in, grads_out):
            return tuple(g if g is None else g * 0.5 for g in grads_in)

        handle = model.head.register_full_backward_hook(half)
        """, notices="tensor-hooks"),
]  # fmt: skip
