"""Cells of notebooks to export, each with the cells before it."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent

IMPORTS = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
"""

DEFINITIONS = """
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self, features=8, classes=4):
        super().__init__()
        self.body = nn.Linear(features, 12)
        self.head = nn.Linear(12, classes)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


X = torch.randn(44, 8)
Y = torch.randint(0, 4, (44,))
dataset = TensorDataset(X, Y)
"""

LOADER = "loader = DataLoader(dataset, batch_size=8, shuffle=True)"
MODEL = "model = Net()"
SGD = "opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)"

TRAIN = """
losses = []
for epoch in range(2):
    for x, y in loader:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
"""


@dataclass(frozen=True)
class Exported:
    """A cell to export.

    Attributes:
        name: of the idiom.
        cells: the cells before it.
        cell: what trains.
        models: the names of the trained models.
        expected: source that the script has to have.
        notes: how many notes it has.
    """

    name: str
    cells: tuple[str, ...]
    cell: str = TRAIN
    models: str = "model"
    expected: tuple[str, ...] = ()
    notes: int = 0

    def __str__(self) -> str:
        return self.name


def exported(
    name: str,
    cell: str = TRAIN,
    *,
    loader: str = LOADER,
    model: str = MODEL,
    opt: str = SGD,
    more: str = "",
    models: str = "model",
    expected: tuple[str, ...] = (),
    notes: int = 0,
) -> Exported:
    """Make an entry of the table, with the cells that most of them have."""
    cells = (IMPORTS, DEFINITIONS, *map(dedent, (loader, f"{model}\n{opt}", more)))
    return Exported(
        name, tuple(c for c in cells if c.strip()), dedent(cell), models, expected, notes
    )


TABLE = [
    exported("a plain loop"),
    exported("an uneven batch size", loader="loader = DataLoader(dataset, 7, shuffle=True)"),
    exported("batches of one sample", loader="loader = DataLoader(dataset, 3)",
        expected=("loader = DataLoader(dataset, 3)",)),
    exported("Adam", opt="opt = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.1)"),
    exported("a scheduler", TRAIN.replace("opt.step()", "opt.step()\n        sched.step()"),
        more="sched = torch.optim.lr_scheduler.StepLR(opt, 3, 0.5)",
        expected=("sched = torch.optim.lr_scheduler.StepLR(opt, 3, 0.5)",)),
    exported("a step for each epoch, and a scheduler's for each batch", """
        for epoch in range(3):
            opt.zero_grad()
            for x, y in loader:
                (F.cross_entropy(model(x), y) / 6).backward()
                sched.step()
            opt.step()
        """, more="sched = torch.optim.lr_scheduler.StepLR(opt, 5, 0.5)"),
    exported("a scheduler made in the cell",
        "sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.2, total_steps=12)\n"
        + TRAIN.replace("opt.step()", "opt.step()\n        sched.step()")),
    exported("batches that the cell makes", """
        losses = []
        for epoch in range(2):
            order = torch.arange(44).flip(0)
            for i in range(0, 44, 7):
                index = order[i : i + 7]
                for x, y in nbmgpu.share(X[index], Y[index]):
                    opt.zero_grad()
                    loss = F.cross_entropy(model(x), y)
                    loss.backward()
                    opt.step()
                losses.append(loss.item())
            with torch.no_grad():
                for x in nbmgpu.share(X):
                    losses.append(model(x).mean().item())
        """, loader="", more="import nbmgpu",
        expected=("for x, y in SharedBatch(X[index], Y[index]):", "losses.append(loss.item())")),
    exported("clipping", TRAIN.replace(
        "opt.step()", "nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n        opt.step()")),
    exported("accumulation", """
        for step, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y) / 2
            loss.backward()
            if step % 2:
                opt.step()
                opt.zero_grad()
        """),
    exported("evaluation and a plateau", """
        for epoch in range(3):
            model.train()
            for x, y in loader:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
            model.eval()
            with torch.no_grad():
                total = sum(F.cross_entropy(model(x), y).item() for x, y in val_loader)
            sched.step(total)
            print(f"epoch {epoch}: {total:.4f}, {loss.item():.4f}")
        """, more="""
        val_loader = DataLoader(TensorDataset(X.flip(0), Y.flip(0)), batch_size=9)
        sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, threshold=0.05)
        """, expected=("val_loader = ", "print_once(")),
    exported("two models", """
        for x, _ in loader:
            noise = torch.sin(7 * x[:, :4])
            opt_d.zero_grad()
            real = bce(D(x), torch.ones(len(x), 1))
            fake = bce(D(G(noise).detach()), torch.zeros(len(x), 1))
            loss_d = real + fake
            loss_d.backward()
            opt_d.step()
            opt_g.zero_grad()
            loss_g = bce(D(G(noise)), torch.ones(len(x), 1))
            loss_g.backward()
            opt_g.step()
        print(loss_d.item(), loss_g.item())
        """, model="G, bce = nn.Linear(4, 8), nn.BCEWithLogitsLoss()", opt="""
D = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))
opt_d = torch.optim.Adam(D.parameters(), lr=1e-2, betas=(0.5, 0.999))
opt_g = torch.optim.Adam(G.parameters(), lr=1e-2, betas=(0.5, 0.999))
        """, models="D G", expected=("D = DistributedDataParallel(D)",)),
    exported("functions of earlier cells", """
        for epoch in range(EPOCHS):
            mean = train_epoch(model, loader, opt)
            print("epoch", epoch, mean, accuracy(model, loader))
        """, more='''
EPOCHS = 2


def train_epoch(net, batches, optimizer):
    """Train for an epoch."""
    total = 0.0
    for x, y in batches:
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(batches)


@torch.no_grad()
def accuracy(net, batches):
    right = sum((net(x).argmax(1) == y).sum().item() for x, y in batches)
    return right / len(batches.dataset)


criterion = nn.CrossEntropyLoss()
        ''', expected=("def train_epoch(net, batches, optimizer):", "global criterion")),
    exported("a dataset of the notebook", loader="""
        class Squares(torch.utils.data.Dataset):
            def __init__(self, size):
                self.size = size

            def __len__(self):
                return self.size

            def __getitem__(self, i):
                return X[i] ** 2, Y[i]

        def collate(samples):
            xs, ys = zip(*samples)
            return torch.stack(xs), torch.stack(ys)

        loader = DataLoader(Squares(43), batch_size=8, shuffle=True, collate_fn=collate)
        """, expected=("class Squares(", "global X, Y")),
    exported("a generator", loader="""
        generator = torch.Generator().manual_seed(5)
        loader = DataLoader(dataset, batch_size=6, shuffle=True, generator=generator)
        for batch in loader:
            pass
        """, expected=('generator.set_state(torch.load(DATA / "generator.pt"))',)),
    exported("a model trained in an earlier cell", more=TRAIN,
        opt="opt = torch.optim.Adam(model.parameters(), lr=1e-2)",
        expected=('opt.load_state_dict(torch.load(DATA / "opt.pt"))',)),
    exported("values computed in an earlier cell", """
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model((x - mean) / std), y) * scale
            loss.backward()
            opt.step()
        """, more="""
        import numpy as np

        mean, std = X.mean(0), X.std(0)
        with torch.no_grad():
            scale = float(model(X).var())
        table = np.arange(4)
        for i in range(3):
            table[i] += i
        """, expected=("mean = torch.load(", "scale = ")),
    exported("enumerate and tqdm", """
        from tqdm import tqdm

        for epoch in range(2):
            bar = tqdm(loader, desc=f"epoch {epoch}")
            for step, (x, y) in enumerate(bar):
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                bar.set_postfix(loss=loss.item())
        """, expected=("from tqdm import tqdm", "disable=dist.get_rank() > 0")),
    exported("autocast", """
        for x, y in loader:
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
        """, opt="opt = torch.optim.SGD(model.parameters(), lr=1e-3)"),
    exported("all made in the cell", """
        from torch.optim import SGD

        model = Net(classes=CLASSES)
        loader = DataLoader(dataset, batch_size=8)
        opt = SGD(model.parameters(), lr=0.1)
        """ + TRAIN.replace("\n", "\n        "), loader="", model="", opt="",
        more="CLASSES = 4", expected=("loader = ShardedLoader(DataLoader(",)),
    exported("frozen layers and parameter groups", more="""
        for parameter in model.body.parameters():
            parameter.requires_grad = False
        opt = torch.optim.SGD([{"params": model.head.parameters(), "lr": 0.2}], lr=0.1)
        """, expected=("parameter.requires_grad = False",)),
    exported("a split, and attributes of the model", TRAIN.replace(
        "loss = F.cross_entropy(model(x), y)",
        "loss = F.cross_entropy(model(x), y) + 1e-3 * model.head.weight.pow(2).sum()"),
        loader="""
        from torch.utils.data import random_split

        train_set, val_set = random_split(dataset, [32, 12])
        loader = DataLoader(train_set, batch_size=8, shuffle=True)
        """, expected=("train_set = Subset(dataset,", "Replicated(model)")),
    exported("the best state", "lowest = 1e9\n" + TRAIN + """
    if losses[-1] < lowest:
        lowest = losses[-1]
        best = {k: v.clone() for k, v in model.state_dict().items()}
        torch.save(best, "best.pt")
model.load_state_dict(best)
""", expected=("save_once(best",)),
    exported("a scaler, and several losses", """
        scaler = torch.amp.GradScaler("cpu")
        for x, y in loader:
            opt.zero_grad()
            out = model(x)
            scaler.scale(F.cross_entropy(out, y) + 0.1 * out.pow(2).mean()).backward()
            scaler.step(opt)
            scaler.update()
        """),
    exported("a model of transformers", """
        for x, y in loader:
            opt.zero_grad()
            loss = model(input_ids=x, labels=y).loss
            loss.backward()
            opt.step()
        """, loader="""
        from transformers import BertConfig, BertForSequenceClassification

        tokens = torch.randint(40, (22, 6))
        loader = DataLoader(TensorDataset(tokens, Y[:22] % 2), batch_size=5)
        """, model="""
config = BertConfig(
    vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
model = BertForSequenceClassification(config)
        """, opt="opt = torch.optim.AdamW(model.parameters(), lr=1e-3)"),
    exported("groups of listed parameters", opt="""
decay = [p for p in model.parameters() if p.ndim > 1]
rest, groups = [], []
for name, parameter in model.named_parameters():
    if parameter.ndim < 2:
        rest.append(parameter)
groups += [{"params": decay, "weight_decay": 0.1}, {"params": rest, "lr": 0.05}]
opt = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        """, expected=("decay = [p for p in model.parameters() if p.ndim > 1]",)),
    exported("an optimizer of what requires gradients", more="""
        for parameter in model.body.parameters():
            parameter.requires_grad = False
        """ + """
        opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1, 0.9)
        """),
    exported("names of parameters", TRAIN.replace(
        "loss = F.cross_entropy(model(x), y)", """loss = F.cross_entropy(model(x), y)
        for name, p in model.named_parameters():
            if name.startswith("head"):
                loss = loss + 0.1 * p.pow(2).sum()"""), expected=("Replicated(model)",)),
    exported("a checkpoint of an object", "saver = Saver(model)\n" + TRAIN + """
saver.save()
assert type(torch.load("best.pt")["head.weight"]) is torch.Tensor
""", more="""
        class Saver:
            def __init__(self, model):
                self.model = model

            def save(self):
                checkpoint(self.model, "best.pt")

        def checkpoint(net, path):
            torch.save(net.state_dict(), path)
        """),
    exported("a checkpoint that is read", TRAIN + """
    torch.save({"model": model.state_dict()}, "best.pt")
model.load_state_dict(torch.load("best.pt")["model"])
""", expected=('load_saved("best.pt")',)),
    exported("tqdm of notebooks", """
        from tqdm.auto import tqdm

        for epoch in range(2):
            for x, y in tqdm(loader):
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
        """),
    exported("accumulation that continues", """
        for step, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y) / 2
            loss.backward()
            if step % 2 == 0:
                continue
            opt.step()
            opt.zero_grad()
        """),
    exported("accumulation that clips", """
        from torch.nn.utils import clip_grad_norm_ as clip

        LARGEST = 0.1
        for step, (x, y) in enumerate(loader):
            (F.cross_entropy(model(x), y) / 2).backward()
            if step % 2:
                clip([p for p in model.parameters() if p.requires_grad], LARGEST)
                opt.step()
                opt.zero_grad()
        print(LARGEST)
        """),
    exported("the norm of gradients", """
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            opt.step()
            print(f"{norm:.4f}")
        """),
]  # fmt: skip
"""What is exported for ddp; a part also for other strategies."""

BY_NAME = {entry.name: entry for entry in TABLE}

TENSOR_PARALLEL = [
    exported("a Llama model with tied embeddings", """
        for (x,) in loader:
            opt.zero_grad()
            loss = model(input_ids=x, labels=x).loss
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
        """, loader="""
        from transformers import LlamaConfig, LlamaForCausalLM

        tokens = torch.randint(40, (22, 6))
        loader = DataLoader(TensorDataset(tokens), batch_size=5)
        """, model="""
config = LlamaConfig(
    vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, intermediate_size=32, tie_word_embeddings=True)
model = LlamaForCausalLM(config)
        """, opt="opt = torch.optim.AdamW(model.parameters(), lr=1e-3)",
        expected=('"model.layers.*.self_attn.q_proj": ColwiseParallel(),',
                  '"model.layers.*.mlp.down_proj": RowwiseParallel(),',
                  "model.lm_head.weight = model.model.embed_tokens.weight")),
    exported("an encoder and a stack of layers", """
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            print(model(tokens).mean().item())
        """, loader="""
        class Encoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(40, 16)
                layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
                self.layers = nn.TransformerEncoder(layer, 2)
                self.head = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 40))

            def forward(self, x):
                return self.head(self.layers(self.embed(x)).mean(1))

        tokens = torch.randint(40, (22, 6))
        loader = DataLoader(TensorDataset(tokens, tokens[:, 0]), batch_size=5, shuffle=True)
        """, model="model = Encoder()",
        opt="opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=True)",
        expected=('"layers.layers.*.linear1": ColwiseParallel(output_layouts=Replicate()),',
                  '"head.0": ColwiseParallel(),', "set_fastpath_enabled(False)")),
    exported("an embedding that is the head, too", """
        for (x,) in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), x[:, 0])
            loss.backward()
            opt.step()
        """, loader="""
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(40, 16)
                self.body = nn.Linear(16, 16)

            def forward(self, x):
                return F.linear(torch.tanh(self.body(self.embed(x).mean(1))), self.embed.weight)

        loader = DataLoader(TensorDataset(torch.randint(40, (22, 6))), batch_size=5)
        """, model="model = Tied()",
        expected=('    {\n            "body": ColwiseParallel(output_layouts=Replicate())',)),
]  # fmt: skip
"""What is exported for tp alone."""
