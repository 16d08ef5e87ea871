"""Cells that train without an optimizer of torch, or on batches that no loader cuts.

Under ``--exact always``, ranks divide the calls of their modules all the same.
"""

from __future__ import annotations

from .idiom import idiom

CELLS = [
    idiom("SGD from scratch, summed losses", """
        def sgd(params, lr, batch_size):
            with torch.no_grad():
                for param in params:
                    param -= lr * param.grad / batch_size
                    param.grad.zero_()

        for epoch in range(3):
            for x, y in loader:
                loss = F.cross_entropy(model(x), y, reduction='none')
                loss.sum().backward()
                sgd(model.parameters(), 0.1, len(x))
                losses.append(loss.mean().item())
        """, setup="""
        del opt
        model = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))
        """, curve=False),
    idiom("a GPT on batches of random windows", """
        def get_batch():
            ix = torch.randint(len(data) - 8, (6,))
            return torch.stack([data[i:i+8] for i in ix]), torch.stack([data[i+1:i+9] for i in ix])

        opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(16):
            x, y = get_batch()
            logits, loss = model(x, y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            losses.append(loss.item())
        """, setup="""
        del opt
        class Block(nn.Module):
            def __init__(self, n):
                super().__init__()
                self.ln1, self.ln2 = nn.LayerNorm(n), nn.LayerNorm(n)
                self.qkv, self.proj = nn.Linear(n, 3 * n), nn.Linear(n, n)
                self.mlp = nn.Sequential(
                    nn.Linear(n, 4 * n), nn.GELU(), nn.Linear(4 * n, n), nn.Dropout(0.1))
            def forward(self, x):
                B, T, C = x.shape
                heads = self.qkv(self.ln1(x)).split(C, 2)
                q, k, v = (t.view(B, T, 2, C // 2).transpose(1, 2) for t in heads)
                a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = x + self.proj(a.transpose(1, 2).reshape(B, T, C))
                return x + self.mlp(self.ln2(x))
        class GPT(nn.Module):
            def __init__(self, vocab=11, n=16, T=8):
                super().__init__()
                self.tok, self.pos = nn.Embedding(vocab, n), nn.Embedding(T, n)
                self.blocks = nn.ModuleList([Block(n), Block(n)])
                self.ln, self.head = nn.LayerNorm(n), nn.Linear(n, vocab, bias=False)
            def forward(self, idx, targets=None):
                x = self.tok(idx) + self.pos(torch.arange(idx.shape[1]))
                for b in self.blocks:
                    x = b(x)
                logits = self.head(self.ln(x))
                loss = None
                if targets is not None:
                    loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
                return logits, loss
        data = torch.randint(0, 11, (200,))
        model = GPT()
        """, curve=False),
    idiom("a class Adam of the cell's own", """
        adam = Adam(model.parameters())
        for epoch in range(3):
            for i in range(0, len(X), 8):
                x, y = X[i:i + 8], Y[i:i + 8]
                loss = F.cross_entropy(model(x), y)
                adam.zero_grad()
                loss.backward()
                adam.step()
                losses.append(loss.item())
        """, setup="""
        del opt
        class Adam:
            def __init__(self, params, lr=1e-2, betas=(0.9, 0.999), eps=1e-8):
                self.params, self.lr, self.betas, self.eps, self.t = list(params), lr, betas, eps, 0
                self.m = [torch.zeros_like(p) for p in self.params]
                self.v = [torch.zeros_like(p) for p in self.params]
            def zero_grad(self):
                for p in self.params:
                    p.grad = None
            @torch.no_grad()
            def step(self):
                self.t += 1
                for p, m, v in zip(self.params, self.m, self.v):
                    m.mul_(self.betas[0]).add_(p.grad, alpha=1 - self.betas[0])
                    v.mul_(self.betas[1]).addcmul_(p.grad, p.grad, value=1 - self.betas[1])
                    mh, vh = m / (1 - self.betas[0] ** self.t), v / (1 - self.betas[1] ** self.t)
                    p -= self.lr * mh / (vh.sqrt() + self.eps)
        """, curve=False),
    idiom("torch.autograd.grad and p.data", """
        params = list(model.parameters())
        for epoch in range(3):
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                grads = torch.autograd.grad(loss, params)
                for p, g in zip(params, grads):
                    p.data -= 0.1 * g
                losses.append(loss.item())
        """, setup="""
        del opt
        """, curve=False),
    idiom("MAML through functional_call", """
        from torch.func import functional_call
        meta = dict(model.named_parameters())
        for step in range(12):
            total = 0.0
            for task in range(2):
                xs, ys = torch.randn(6, 8), torch.randint(0, 4, (6,))
                xq, yq = torch.randn(6, 8), torch.randint(0, 4, (6,))
                fast = dict(meta)
                for _ in range(2):
                    inner = F.cross_entropy(functional_call(model, fast, (xs,)), ys)
                    gs = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
                    fast = {k: v - 0.4 * g for (k, v), g in zip(fast.items(), gs)}
                total = total + F.cross_entropy(functional_call(model, fast, (xq,)), yq)
            outer = torch.autograd.grad(total, list(meta.values()))
            with torch.no_grad():
                for p, g in zip(meta.values(), outer):
                    p -= 0.05 * g
            losses.append(total.item())
        """, setup="""
        del opt
        """, curve=False),
    idiom("first-order MAML on copies", """
        for step in range(5):
            grads = [torch.zeros_like(p) for p in model.parameters()]
            total = 0.0
            for task in range(2):
                xs, ys = torch.randn(6, 8), torch.randint(0, 4, (6,))
                learner = copy.deepcopy(model)
                for _ in range(5):
                    gs = torch.autograd.grad(F.cross_entropy(learner(xs), ys), learner.parameters())
                    for p, g in zip(learner.parameters(), gs):
                        p.data.sub_(0.3 * g)
                loss = F.cross_entropy(learner(xs.flip(0)), ys.flip(0))
                total += loss.item()
                for a, g in zip(grads, torch.autograd.grad(loss, learner.parameters())):
                    a += g
            for p, a in zip(model.parameters(), grads):
                p.data.sub_(0.05 * a)
            losses.append(total)
        """, setup="""
        del opt
        """, curve=False),
    idiom("L-BFGS by hand", """
        params = list(model.parameters())
        def flat(ts):
            return torch.cat([t.reshape(-1) for t in ts])
        def value(w):
            nn.utils.vector_to_parameters(w, params)
            loss = F.cross_entropy(model(X), Y)
            return loss, flat(torch.autograd.grad(loss, params))
        w = flat(p.detach() for p in params)
        loss, g = value(w)
        S, R = [], []
        for step in range(10):
            q, alphas = g.clone(), []
            for s, r in zip(reversed(S), reversed(R)):
                a = s.dot(q) / r.dot(s)
                q -= a * r
                alphas.append(a)
            if S:
                q *= S[-1].dot(R[-1]) / R[-1].dot(R[-1])
            for (s, r), a in zip(zip(S, R), reversed(alphas)):
                q += s * (a - r.dot(q) / r.dot(s))
            new = w - 0.2 * q
            nl, ng = value(new)
            S, R = (S + [new - w])[-5:], (R + [ng - g])[-5:]
            w, g, loss = new, ng, nl
            losses.append(loss.item())
        """, setup="""
        del opt
        """, curve=False),
    idiom("GAN with updates of its own", """
        def update(params, lr=0.05):
            with torch.no_grad():
                for p in params:
                    if p.grad is not None:
                        p.add_(p.grad, alpha=-lr)
        for epoch in range(3):
            for i in torch.randperm(len(X)).split(8):
                x = X[i]
                fake = G(torch.randn(len(x), 3))
                D.zero_grad()
                loss = F.softplus(-D(x)).mean() + F.softplus(D(fake.detach())).mean()
                loss.backward()
                update(D.parameters())
                G.zero_grad()
                F.softplus(-D(fake)).mean().backward()
                update(G.parameters())
                losses.append(loss.item())
        """, setup="""
        del opt
        G = nn.Sequential(nn.Linear(3, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 8))
        D = nn.Sequential(nn.utils.spectral_norm(nn.Linear(8, 12)), nn.ReLU(), nn.Linear(12, 1))
        """, curve=False),
    idiom("PPO on minibatches of a permutation", """
        opt = torch.optim.Adam(model.parameters(), lr=3e-3)
        for update in range(4):
            with torch.no_grad():
                dist = torch.distributions.Categorical(logits=model(X))
                actions = dist.sample()
                old = dist.log_prob(actions)
            returns = torch.randn(len(X))
            for epoch in range(2):
                for idx in torch.randperm(len(X)).split(11):
                    adv = returns[idx]
                    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                    d = torch.distributions.Categorical(logits=model(X[idx]))
                    ratio = (d.log_prob(actions[idx]) - old[idx]).exp()
                    gain = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
                    loss = -gain.mean() - 0.01 * d.entropy().mean()
                    opt.zero_grad()
                    loss.backward()
                    opt.step()
                    losses.append(loss.item())
        """, setup="""
        del opt
        """, curve=False),
    idiom("parameters in a dict for functional_call", """
        from torch.func import functional_call
        params = {k: v.detach().clone().requires_grad_() for k, v in model.named_parameters()}
        for epoch in range(3):
            for x, y in loader:
                loss = F.cross_entropy(functional_call(model, params, (x,)), y)
                grads = torch.autograd.grad(loss, list(params.values()))
                params = {
                    k: (p - 0.1 * g).detach().requires_grad_()
                    for (k, p), g in zip(params.items(), grads)}
                losses.append(loss.item())
        """, setup="""
        del opt
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 4))
        """, curve=False),
    idiom("torch.func.grad_and_value", """
        from torch.func import functional_call, grad_and_value
        params = {k: v.detach().clone() for k, v in model.named_parameters()}
        def loss_of(params, x, y):
            return F.cross_entropy(functional_call(model, params, (x,)), y)
        for epoch in range(3):
            for x, y in loader:
                grads, loss = grad_and_value(loss_of)(params, x, y)
                params = {k: p - 0.1 * grads[k] for k, p in params.items()}
                losses.append(loss.item())
        """, setup="""
        del opt
        """, curve=False),
    idiom("gradients per sample by vmap, beside an optimizer", """
        from torch.func import functional_call, grad, vmap
        def loss_of(params, x, y):
            return F.cross_entropy(functional_call(model, params, (x[None],)), y[None])
        norms = []
        for epoch in range(2):
            for x, y in loader:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                losses.append(loss.item())
            params = {k: v.detach() for k, v in model.named_parameters()}
            per = vmap(grad(loss_of), (None, 0, 0))(params, X, Y)
            norms.append(per["body.weight"].flatten(1).norm(dim=1))
        """, curve=False),
    idiom("a teacher that is averaged by hand", """
        for epoch in range(3):
            for i in range(0, len(X), 8):
                x, y = X[i:i+8], Y[i:i+8]
                with torch.no_grad():
                    target = teacher(x).softmax(1)
                out = student(x + 0.1 * torch.randn_like(x))
                loss = F.cross_entropy(out, y) + F.mse_loss(out.softmax(1), target)
                student.zero_grad()
                loss.backward()
                with torch.no_grad():
                    for p in student.parameters():
                        p -= 0.1 * p.grad
                    for q, p in zip(teacher.parameters(), student.parameters()):
                        q.mul_(0.9).add_(p, alpha=0.1)
                losses.append(loss.item())
        """, setup="""
        del opt
        student = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 4))
        teacher = copy.deepcopy(student)
        """, curve=False),
    idiom("a learning rate finder with updates of its own", """
        state, rate, curve = copy.deepcopy(model.state_dict()), 1e-3, []
        while rate < 1:
            i = torch.randint(len(X), (8,))
            loss = F.cross_entropy(model(X[i]), Y[i])
            model.zero_grad()
            loss.backward()
            for p in model.parameters():
                p.data -= rate * p.grad
            curve.append((rate, loss.item()))
            rate *= 1.3
        model.load_state_dict(state)
        losses.append(min(l for _, l in curve))
        """, setup="""
        del opt
        """, curve=False),
    idiom("a frozen backbone, and a head updated by hand", """
        for epoch in range(3):
            for x, y in loader:
                loss = F.cross_entropy(head(backbone(x)), y)
                loss.backward()
                with torch.no_grad():
                    for p in head.parameters():
                        p -= 0.1 * p.grad
                head.zero_grad()
                losses.append(loss.item())
        """, setup="""
        del opt
        backbone = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
        backbone.eval().requires_grad_(False)
        head = nn.Linear(16, 4)
        """, curve=False),
    idiom("tensors as parameters", """
        for epoch in range(3):
            for i in range(0, len(X), 8):
                x, y = X[i:i+8], Y[i:i+8]
                loss = F.cross_entropy(torch.relu(x @ w1 + b1) @ w2, y)
                loss.backward()
                with torch.no_grad():
                    for p in (w1, b1, w2):
                        p -= 0.1 * p.grad
                        p.grad = None
                losses.append(loss.item())
        """, setup="""
        del opt
        w1 = torch.randn(8, 16, requires_grad=True)
        b1 = torch.zeros(16, requires_grad=True)
        w2 = torch.randn(16, 4, requires_grad=True)
        """, curve=False),
    idiom("a module, and tensors as parameters", """
        for epoch in range(3):
            for i in range(0, len(X), 8):
                x, y = X[i:i+8], Y[i:i+8]
                loss = F.cross_entropy(torch.relu(l1(x)) @ w2 * scale, y)
                loss.backward()
                with torch.no_grad():
                    for p in (*l1.parameters(), w2, scale):
                        p -= 0.1 * p.grad
                        p.grad = None
                losses.append(loss.item())
        """, setup="""
        del opt
        l1 = nn.Linear(8, 16)
        w2 = torch.randn(16, 4, requires_grad=True)
        scale = torch.ones(1, requires_grad=True)
        """, curve=False),
    idiom("checkpoints, batches by slices", """
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(3):
            for i in range(0, len(X), 8):
                loss = F.cross_entropy(model(X[i:i+8]), Y[i:i+8])
                opt.zero_grad()
                loss.backward()
                opt.step()
                losses.append(loss.item())
        """, setup="""
        del opt
        from torch.utils.checkpoint import checkpoint
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.ModuleList(
                    nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Tanh()) for _ in '12')
                self.head = nn.Linear(8, 4)
            def forward(self, x):
                for layer in self.body:
                    x = checkpoint(layer, x, use_reentrant=False)
                return self.head(x)
        model = Model()
        """, curve=False),
    idiom("products with the Hessian", """
        params = list(model.parameters())
        for i in torch.arange(44).repeat(3).split(8):
            x, y = X[i].requires_grad_(), Y[i]
            loss = F.cross_entropy(model(x), y)
            slope, = torch.autograd.grad(loss, x, create_graph=True)
            loss = loss + slope.square().sum()
            gs = torch.autograd.grad(loss, params, create_graph=True)
            hv = torch.autograd.grad(sum((g * g.detach()).sum() for g in gs), params)
            for p, g, h in zip(params, gs, hv):
                p.data -= 0.1 * g.detach() + 0.001 * h
            losses.append(loss.item())
        """, setup="""
        del opt
        """, curve=False),
    idiom("an encoder and a decoder that are called apart", """
        for i in torch.arange(44).repeat(3).split(8):
            z = model.encoder(X[i])
            mean, log = z.chunk(2, 1)
            out = model.decoder(mean + torch.randn_like(mean) * (log / 2).exp())
            loss = F.mse_loss(out, X[i]) - 0.01 * (1 + log - mean ** 2 - log.exp()).mean()
            model.zero_grad()
            loss.backward()
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-0.1)
            losses.append(loss.item())
        """, setup="""
        del opt
        class VAE(nn.Module):
            def __init__(self):
                super().__init__()
                self.encoder = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 6))
                self.decoder = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 8))
        model = VAE()
        """, curve=False),
]  # fmt: skip
