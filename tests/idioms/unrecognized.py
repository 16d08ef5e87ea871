"""Cells whose numbers differ on shards in ways that no rule recognizes: gradients show it."""

from __future__ import annotations

from .decisions import PER_SAMPLE, after_losses, before_backward
from .idiom import Idiom, idiom
from .whole_batch import train

COLLATED = """
def collated(samples):
    xs, ys = (torch.stack(column) for column in zip(*samples))
    {}
loader = torch.utils.data.DataLoader(loader.dataset, batch_size=8, collate_fn=collated)
"""

LISTS = "loader = torch.utils.data.DataLoader(loader.dataset, batch_size=8, collate_fn=list)\n"

IN_LISTS = """
for epoch in range(2):
    for samples in loader:
        x, y = (torch.stack(column) for column in zip(*samples))
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y, reduction="none")
        loss = {}
        loss.backward()
        opt.step()
        losses.append(loss.item())
"""

COUNTS = {
    "a count and one": train("((y < 2) * per).sum() / ((y < 2).sum() + 1)", PER_SAMPLE),
    "a count that is at least one": train(
        "((y == 1) * per).sum() / (y == 2).sum().clamp(min=1)", PER_SAMPLE
    ),
    "numbers of positions": train("(torch.arange(len(x)) * per).mean()", PER_SAMPLE),
    "a line from 0 to 1": train("(torch.linspace(0, 1, len(x)) * per).mean()", PER_SAMPLE),
}

PLACES = {
    "the mean of one sample": before_backward("loss = loss + model(x)[0].mean()"),
    "ranks of losses": train("(per.argsort().argsort() * per).mean()", PER_SAMPLE),
    "a recursion along the batch": train(
        "returns.mean()",
        after_losses(
            "returns = torch.zeros(len(x))", "running = 0.0",
            "for t in reversed(range(len(x))):",
            "    running = per[t] + 0.9 * running", "    returns[t] = running",
        ),
    ),
    "a convolution along the batch": train(
        "F.conv1d(model(x).T[None], torch.ones(4, 4, 2)).abs().mean()"
    ),
}  # fmt: skip

SETUPS = {
    "standardized by collate_fn": (
        train("F.cross_entropy(model(x), y)"),
        COLLATED.format("return (xs - xs.mean(0)) / (xs.std(0) + 1e-5), ys"),
    ),
    "weights of labels by collate_fn": (
        train("(F.cross_entropy(model(x), y, reduction='none') / (y == y[:, None]).sum(0)).mean()")
        .replace("(y == y[:, None]).sum(0)", "weights")
        .replace("for x, y in", "for x, y, weights in"),
        COLLATED.format("return xs, ys, torch.bincount(ys, minlength=4)[ys]"),
    ),
    "lists of samples": (IN_LISTS.format("loss.sum() / len({int(label) for label in y})"), LISTS),
    "the largest of a list": (
        IN_LISTS.format("loss.mean() * max(int(label) for _, label in samples)"), LISTS,
    ),
    "a backward pass that combines samples": (
        train("Centred.apply(model(x)).pow(2).mean() + F.cross_entropy(model(x), y)"),
        """
class Centred(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        return grad - grad.mean(0)
""",
    ),
}  # fmt: skip

LATE = {
    "every sixth step": "k = 0\n"
    + before_backward("k += 1; loss = loss * (1 + x[0, 0].abs()) if k % 6 == 0 else loss"),
    "from the second epoch on": before_backward(
        "loss = loss + (model(x)[0].mean() if epoch else 0)"
    ),
}

UNRECOGNIZED: tuple[Idiom, ...] = (
    *(idiom(name, cell) for name, cell in {**COUNTS, **PLACES, **LATE}.items()),
    *(idiom(name, cell, setup=setup) for name, (cell, setup) in SETUPS.items()),
)
