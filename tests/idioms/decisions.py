"""Cells that decide by values of a batch, pick samples by them, or compute with them outside torch.

Each rank would decide by its own shard, so the cells start again with whole batches.
"""

from __future__ import annotations

from .idiom import Idiom, idiom
from .whole_batch import train

LOSS = "F.cross_entropy(model(x), y)"
PER_SAMPLE = "per = F.cross_entropy(model(x), y, reduction='none')"


def before_backward(statement: str) -> str:
    """Return a training loop with a statement between the loss and its backward pass."""
    loop = train(LOSS)
    return loop.replace("        loss.backward()", f"        {statement}\n        loss.backward()")


def after_losses(*statements: str) -> str:
    """Return statements that follow ``PER_SAMPLE``."""
    return "\n        ".join((PER_SAMPLE, *statements))


BRANCHES = {
    "a branch on the loss": before_backward("if loss > 1.4: loss = loss * 0.5"),
    "a branch on a mean": before_backward("if x.mean() > 0: loss = loss * 0.5"),
    "a branch on a count": before_backward(
        "if (y == 0).sum() > 1: loss = loss + 0.1 * model.head.weight.pow(2).sum()"
    ),
    "a branch on a label": before_backward("if y[0] == 0: loss = loss * 2"),
    "a branch on any label": before_backward("if (y == 3).any(): loss = loss * 2"),
    "a branch on no label": before_backward("if not (y > 2).sum(): loss = loss * 2"),
    "a label that is contained": before_backward("if 0 in y: loss = loss * 2"),
    "a loop that a mean ends": train(
        f"{LOSS} * k", "k = 1\n        while x.mean() * k < 0.3 and k < 5: k += 1"
    ),
    "Python's max of losses": train("max([per[(y % 3) == k].sum() for k in range(3)])", PER_SAMPLE),
    "where by a running mean": "ema = None\n"
    + before_backward(
        "ema = loss.detach() if ema is None else 0.9 * ema + 0.1 * loss.detach()\n        "
        "loss = loss * torch.where(loss.detach() > ema, 0.5, 1.0)"
    ),
    "the worst sample by its position": train("per[per.argmax()] + per.mean()", PER_SAMPLE),
}

TABLES = {
    "class centres by scatter_reduce": train(
        f"{LOSS} + torch.zeros(4, 4).scatter_reduce(0, y[:, None].expand(-1, 4), model(x), 'mean', "
        "include_self=False).pow(2).sum()"
    ),
    "class maxima by scatter_reduce": train(
        f"{LOSS} + (torch.zeros(4, 4).scatter_reduce(0, y[:, None].expand(-1, 4), "
        "model(x).detach(), 'amax', include_self=False)[y] * model(x)).mean()"
    ),
    "counts of unique labels": train(
        "(F.cross_entropy(model(x), y, reduction='none') / counts[place]).mean()",
        "_, place, counts = torch.unique(y, return_inverse=True, return_counts=True)",
    ),
    "the last sample of each class": train(
        f"{LOSS} + (model(x) - bank[y].detach()).pow(2).mean()",
        "bank = torch.zeros(4, 4); bank[y] = model(x).detach()",
    ),
}

NUMPY = {
    "weights computed by NumPy": train(
        "(torch.from_numpy(w / w.max()) * per).mean()", after_losses("w = per.detach().numpy()")
    ),
    "class weights by bincount": train(
        "F.cross_entropy(model(x), y, "
        "weight=torch.from_numpy(1 / np.maximum(np.bincount(y, minlength=4), 1)).float())"
    ),
    "inputs standardized by NumPy": train(
        "F.cross_entropy(model(z), y)",
        "z = x.numpy(); z = torch.from_numpy((z - z.mean(0)) / z.std(0))",
    ),
    "a quantile as a limit": train(
        "per.clamp(max=float(np.quantile(per.detach().numpy(), 0.8))).mean()", PER_SAMPLE
    ),
    "np.clip of a mean": train(
        "F.cross_entropy(model(x), y, label_smoothing=float(np.clip(1 - x.numpy().mean(), 0, 0.9)))"
    ),
    "the maximum of a list": train(f"{LOSS} * max(x[:, 0].tolist())"),
    "a tensor of a list": train(
        "(torch.tensor([w / top for w in per.tolist()]) * per).mean()",
        after_losses("top = max(per.tolist())"),
    ),
    "a number of a sorted list": train(
        "per.mean() * top", after_losses("ranked = sorted(per.tolist())", "top = ranked[-1]")
    ),
    "a range of an array": train(
        "per.mean() * top",
        after_losses("w = per.detach().numpy()", "top = w.max()", "top = top - w.min()"),
    ),
    "class weights by pandas": "import pandas\n"
    + train(
        f"{LOSS} + F.cross_entropy(model(x), y, weight=w)",
        "share = pandas.Series(y.numpy()).value_counts(normalize=True)\n        "
        "w = torch.tensor([float(share.get(k, 0.1)) for k in range(4)])",
    ),
    "an assignment by SciPy": "from scipy.optimize import linear_sum_assignment\n"
    + train(
        "(out[torch.as_tensor(i)] - out.detach()[torch.as_tensor(j)]).pow(2).mean() "
        "+ F.cross_entropy(out, y)",
        "out = model(x)\n        "
        "cost = torch.cdist(out, out.flip(0)).detach().numpy()\n        "
        "i, j = linear_sum_assignment(cost)",
    ),
}

DECISIONS: list[Idiom] = [
    idiom(name, cell, curve=False) for name, cell in (BRANCHES | TABLES | NUMPY).items()
]

ON_SHARDS = {
    "guards against nan": before_backward(
        "if torch.isnan(loss): continue\n        if not torch.isfinite(loss): break"
    ),
    "an assertion": before_backward("assert loss < 100"),
    "a class that all shards have": train(
        f"{LOSS} + (F.relu(model(x)[y >= 0]).sum() / len(x) if (y >= 0).any() else 0)"
    ),
    "a branch for each sample": train(
        "sum(F.cross_entropy(model(a[None]), b[None]) * (2 if b == 0 else 1) for a, b in zip(x, y))"
        " / len(x)"
    ),
    "a mean that may be empty": train(
        "torch.where(m.sum() > 0, (per * m).sum() / m.sum().clamp(min=1), 0.0)",
        after_losses("m = y != 0"),
    ),
    "the best loss": "best = torch.tensor(9.0)\n"
    + train(LOSS, after="best = loss.detach() if loss < best else best"),
    "predictions as an array": train(LOSS, after="guesses = model(x).argmax(1).numpy()"),
    "constants beside an array": train(
        "per.mean() * 0.7 + 0.1", after_losses("w = per.detach().numpy()")
    ),
    "a mask of rows to write": train(
        f"{LOSS} + out.mean()", "m = y > 0; out = torch.zeros(len(x)); out[m] = model(x)[m, 0]"
    ),
    "positions of rows to write": train(
        f"{LOSS} + out.mean()",
        "i = (y > 0).nonzero()[:, 0]; out = torch.zeros(len(x)); out[i] = model(x)[i, 0]",
    ),
}
"""Cells that are exact on shards, though they look like those above."""
