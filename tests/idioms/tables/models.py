"""Models: several, shared, frozen, partly used, called in all ways."""

from idioms.idiom import idiom
from idioms.sources import step

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
        """, rank_local="z fake real_score fake_score score", ranks=(2, 3)),
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
        """, setup="teacher = Net()", rank_local="target"),
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
        """, setup="loader = DataLoader(dataset, 7)", rank_local="_", curve=False),
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
        """, rank_local="out"),
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
        """, rank_local="logits features aux"),
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
]  # fmt: skip
