"""How cells call models: by parts, through wrappers of torch, with hidden states."""

from idioms.idiom import TRAIN, idiom
from idioms.sources import SEQUENCES, step

IDIOMS = [
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
        """, rank_local="parts"),
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
    """.strip()), setup="from torch.utils.checkpoint import checkpoint", rank_local="hidden",
        ranks=(2, 3)),
    idiom("checkpoint, not reentrant", step("""
    hidden = checkpoint(model.body, x, use_reentrant=False)
    loss = F.cross_entropy(model.head(torch.tanh(hidden)), y)
    """.strip()), setup="from torch.utils.checkpoint import checkpoint", rank_local="hidden"),
    idiom("checkpoint, reentrant, a layer used twice", step("""
    hidden = checkpoint(model.body, x.requires_grad_(), use_reentrant=True)
    again = checkpoint(model.body, torch.tanh(hidden[:, :8]), use_reentrant=True)
    loss = F.cross_entropy(model.head(again), y)
    """.strip()), setup="from torch.utils.checkpoint import checkpoint", rank_local="hidden again"),
    idiom("torch.func.functional_call", step("""
    params = dict(model.named_parameters())
    loss = F.cross_entropy(torch.func.functional_call(model, params, x), y)
    """.strip()), rank_local="params"),
    idiom("torch.func.grad, a manual step", """
        def loss_of(params, x, y):
            return F.cross_entropy(torch.func.functional_call(model, params, (x,)), y)

        for x, y in loader:
            params = {k: v.detach() for k, v in model.named_parameters()}
            grads = torch.func.grad(loss_of)(params, x, y)
            with torch.no_grad():
                for k, p in model.named_parameters():
                    p -= 0.1 * grads[k]
        """, setup="loader = DataLoader(dataset, 7)", rank_local="grads", split=False),
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
    idiom("a user-defined parametrization", setup="""
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
        """, rank_local="n"),
    idiom("packed sequences", step("""
    packed = nn.utils.rnn.pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False)
    loss = F.cross_entropy(head(lstm(packed)[1][0][-1]), y)
    """.strip(), loader="x, n, y in loader"), setup=SEQUENCES + """
    lstm, head = nn.LSTM(8, 10, batch_first=True), nn.Linear(10, 4)
    opt = torch.optim.Adam([*lstm.parameters(), *head.parameters()], lr=1e-2)
        """, rank_local="n packed", ranks=(2, 3)),
    idiom("hidden state carried over, truncated", """
        hidden = torch.zeros(1, 12)
        for x, y in loader:
            hidden = torch.tanh(model.body(x.mean(0, keepdim=True)) + hidden.detach())
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, rank_local="hidden"),
    idiom("a Transformer encoder", step(
        "loss = F.cross_entropy(head(encoder(x).mean(1)), y)", loader="x, n, y in loader"),
        setup=SEQUENCES + """
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", batch_first=True)
    encoder, head = nn.TransformerEncoder(layer, 2), nn.Linear(8, 4)
    opt = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.05)
        """, rank_local="n"),
    idiom("convolutions and layer normalization", step(
        "loss = F.cross_entropy(model(x.view(-1, 1, 2, 4)), y)"), setup="""
        model = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.GELU(), nn.GroupNorm(2, 6), nn.Flatten(),
            nn.LayerNorm(48), nn.Linear(48, 4))
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        """),
    idiom("batch normalization, frozen", """
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
        """, rank_local="h at", ranks=(2, 3)),
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
