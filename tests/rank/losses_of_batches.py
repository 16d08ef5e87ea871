"""Losses of a batch, by how they depend on its samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SAMPLES, GLOBAL_BATCH_SIZE = 6, 12
Loss = Callable[[Any, Tensor, Tensor], Tensor]

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 5))
X, Y = torch.randn(SAMPLES, 4), torch.arange(SAMPLES) % 5


def each(m: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(m(x), y, reduction="none")


def unit(m: Any, x: Tensor) -> Tensor:
    return F.normalize(m(x), dim=1)


def similar(a: Tensor, b: Tensor) -> Tensor:
    return F.cross_entropy(a @ b.T / 0.5, torch.arange(len(a)))


def centered(z: Tensor) -> Tensor:
    return z - z.mean(0)


def normalized(z: Tensor) -> Tensor:
    return F.batch_norm(z, None, None, training=True)


def weights(y: Tensor) -> Tensor:
    return (y + 1.0) / (y + 1.0).sum()


CROSS_SAMPLE: dict[str, Loss] = {
    "contrastive": lambda m, x, y: similar(unit(m, x), unit(m, x + 0.1)),
    "contrastive, all views in one": lambda m, x, y: (
        (z := unit(m, torch.cat([x, x + 0.1]))) @ z.T).logsumexp(1).mean(),
    "einsum": lambda m, x, y: torch.einsum("ik,jk->ij", m(x), m(x)).square().mean(),
    "distances": lambda m, x, y: torch.cdist(m(x), m(x)).mean(),
    "pairs by broadcasting": lambda m, x, y: (m(x)[:, None] - m(x)[None]).square().mean(),
    "centered outputs": lambda m, x, y: F.cross_entropy(centered(m(x)), y),
    "centered inputs": lambda m, x, y: F.cross_entropy(m(centered(x)), y),
    "classes weighted by their count": lambda m, x, y: F.cross_entropy(
        m(x), y, weight=1 / torch.bincount(y, minlength=5).float().add(1)),
    "advantages of the batch": lambda m, x, y: (each(m, x, y) * centered(y.float())).mean(),
    "advantages, detached": lambda m, x, y: (each(m, x, y) * centered(m(x)[:, 0].detach())).mean(),
    "weights that sum to 1": lambda m, x, y: (each(m, x, y) * weights(y)).sum(),
    "softmax over the batch": lambda m, x, y: (each(m, x, y).detach().softmax(0)
                                               * each(m, x, y)).sum(),
    "cross-correlation": lambda m, x, y: (m(x).T @ m(x) / len(x) - torch.eye(5)).square().sum(),
    "hardest of the batch": lambda m, x, y: each(m, x, y).topk(2).values.mean(),
    "above the median": lambda m, x, y: (
        losses := each(m, x, y))[losses > losses.median()].mean(),
    "mixup": lambda m, x, y: F.cross_entropy(m(0.7 * x + 0.3 * x.flip(0)), y),
    "mixup by an index": lambda m, x, y: F.cross_entropy(m(x + x[torch.randperm(len(x))]), y),
    "negatives by rolling": lambda m, x, y: F.triplet_margin_loss(
        m(x), m(x + 0.1), m(x.roll(1, 0))),
    "attention among samples": lambda m, x, y: F.cross_entropy(
        F.scaled_dot_product_attention(m(x)[None], m(x)[None], m(x)[None])[0], y),
    "mixed by a matrix": lambda m, x, y: F.cross_entropy(torch.ones(6, 6) / 6 @ m(x), y),
    "product of means": lambda m, x, y: (F.one_hot(y, 5).float().mean(0)
                                         * m(x).softmax(1).mean(0)).sum(),
    "groups of two": lambda m, x, y: m(x).view(3, 2, 5).std(1).mean(),
    "sorted, then against a line": lambda m, x, y: (
        m(x)[:, 0].sort().values - y).square().mean(),
    "the upper triangle": lambda m, x, y: m(x).triu().square().mean(),
    "the diagonal": lambda m, x, y: m(x).diagonal().mean(),
    "another class for each position": lambda m, x, y: m(x).gather(
        1, torch.arange(len(x))[:, None] % 5).mean(),
}  # fmt: skip
NEEDS_SEVERAL = {
    "hardest of the batch",
    "mixed by a matrix",
    "groups of two",  # an error with one sample
    "mixup by an index",
    "sorted, then against a line",  # the sample itself, as far as is visible
    "another class for each position",
}
"""Names of losses that cannot be seen to combine samples on a shard of one sample."""

SUBSETS: dict[str, Loss] = {
    "the first": lambda m, x, y: each(m, x, y)[0],
    "the first two": lambda m, x, y: each(m, x, y)[:2].mean(),
    "every other": lambda m, x, y: F.cross_entropy(m(x)[::2], y[::2]),
    "two of a loop": lambda m, x, y: sum(  # type: ignore[arg-type, return-value]
        F.cross_entropy(m(x[i : i + 1]), y[i : i + 1]) for i in range(2)),
    "a fixed index": lambda m, x, y: each(m, x, y)[torch.tensor([0, 3])].mean(),
}  # fmt: skip
SELECTED: dict[str, Loss] = {
    "selected before the model": lambda m, x, y: F.mse_loss(m(x[y > 1])[:, 0], y[y > 1].float()),
}


def looped(m: Any, x: Tensor, y: Tensor) -> Tensor:
    losses = [F.cross_entropy(m(a[None]), b[None]) for a, b in zip(x, y, strict=True)]
    return torch.stack(losses).mean()


def pieces(m: Any, x: Tensor, y: Tensor) -> Tensor:
    parts = zip(x.split(4), y.split(4), strict=True)
    return torch.cat([each(m, a, b) for a, b in parts]).mean()


def packed(m: Any, x: Tensor, y: Tensor) -> Tensor:
    recurrent = nn.LSTM(2, 5, batch_first=True)
    lengths = (x[:, 0] > 0).long() + 1
    sequences = nn.utils.rnn.pack_padded_sequence(
        x.view(-1, 2, 2), lengths, batch_first=True, enforce_sorted=False
    )
    return F.cross_entropy(recurrent(sequences)[1][0][0] + m(x), y)


def sorted_and_back(m: Any, x: Tensor, y: Tensor) -> Tensor:
    order = x[:, 0].argsort()
    return F.cross_entropy(m(x[order])[order.argsort()], y)


def transformer(m: Any, x: Tensor, y: Tensor) -> Tensor:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)
    return F.cross_entropy(m(layer(x.view(-1, 1, 4).expand(-1, 3, 4).transpose(0, 1)).mean(0)), y)


def images(m: Any, x: Tensor, y: Tensor) -> Tensor:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(4, 4),
    )  # fmt: skip
    return F.cross_entropy(m(net(x.view(-1, 1, 2, 2))), y)


def gradient_penalty(m: Any, x: Tensor, y: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(m(x).sum(), x, create_graph=True)
    return ((slope.norm(dim=1) - 1) ** 2).mean() + each(m, x, y).mean()


def with_metrics(m: Any, x: Tensor, y: Tensor) -> Tensor:
    out = m(x)
    accuracy = (out.argmax(1) == y).float().mean()
    assert 0 <= accuracy <= 1
    assert out.std() > 0
    assert not out.isnan().any()
    return F.cross_entropy(out, y)


PER_SAMPLE: dict[str, Loss] = {
    "the same classes for all": lambda m, x, y: m(x).gather(
        1, torch.tensor([[1, 3]]).expand(len(x), 2)).mean(),
    "matrices of one sample each": lambda m, x, y: (
        (p := m(x).softmax(1))[:, :, None] * p[:, None]).triu(1).diagonal(dim1=1, dim2=2).mean(),
    "mean": lambda m, x, y: F.cross_entropy(m(x), y),
    "sum": lambda m, x, y: F.cross_entropy(m(x), y, reduction="sum"),
    "sum / len": lambda m, x, y: each(m, x, y).sum() / len(x),
    "weighted by sample": lambda m, x, y: (each(m, x, y) * y).sum() / y.sum().clamp(min=1),
    "masked": lambda m, x, y: each(m, x, y)[y > 1].mean(),
    "masked outputs": lambda m, x, y: F.cross_entropy(m(x)[y > 1], y[y > 1]),
    "picked by nonzero": lambda m, x, y: each(m, x, y)[(y > 1).nonzero().squeeze(1)].mean(),
    "picked columns": lambda m, x, y: -m(x).log_softmax(1)[torch.arange(len(x)), y].mean(),
    "gathered columns": lambda m, x, y: -m(x).log_softmax(1).gather(1, y[:, None]).mean(),
    "one hot": lambda m, x, y: (m(x) - F.one_hot(y, 5)).square().mean(),
    "where": lambda m, x, y: torch.where(y > 1, each(m, x, y), 0.0).mean(),
    "guarded": lambda m, x, y: torch.where(
        (loss := F.cross_entropy(m(x), y)).isnan(), 0.0, loss),
    "penalty": lambda m, x, y: F.cross_entropy(m(x), y)
    + 0.1 * sum(p.square().sum() for p in m.parameters()),
    "two views in one": lambda m, x, y: F.mse_loss(*m(torch.cat([x, x + 0.1])).chunk(2)),
    "repeated": lambda m, x, y: F.cross_entropy(m(x.repeat(2, 1)), y.repeat(2)),
    "pairs in a sample": lambda m, x, y: F.pairwise_distance(
        *m(x[:, None].expand(-1, 2, -1).flatten(0, 1)).view(len(x), 2, 5).unbind(1)).mean(),
    "focal": lambda m, x, y: ((1 - (-each(m, x, y)).exp()) ** 2 * each(m, x, y)).mean(),
    "dice of a sample": lambda m, x, y: (
        1 - (m(x).sigmoid() * 2).sum(1) / (m(x).sigmoid().sum(1) + 1)).mean(),
    "vmap": lambda m, x, y: F.cross_entropy(torch.vmap(m)(x), y),
    "a loop over samples": looped,
    "pieces": pieces,
    "packed sequences": packed,
    "sorted and back": sorted_and_back,
    "transformer, samples second": transformer,
    "images": images,
    "gradient penalty": gradient_penalty,
    "metrics beside the loss": with_metrics,
}  # fmt: skip


def tokens(x: Tensor) -> Tensor:
    """Return sequences of three tokens, in the first dimension."""
    return x[None].expand(3, -1, -1)


LAYERS: dict[str, Loss] = {
    "attention, samples second": lambda m, x, y: F.cross_entropy(
        m(nn.MultiheadAttention(4, 2)(*[tokens(x)] * 3)[0].mean(0)), y),
    "attention without weights": lambda m, x, y: F.cross_entropy(
        m(nn.MultiheadAttention(4, 2)(*[tokens(x)] * 3, need_weights=False)[0].mean(0)), y),
    "attention, samples first": lambda m, x, y: F.cross_entropy(
        m(nn.MultiheadAttention(4, 2, batch_first=True)(*[tokens(x).transpose(0, 1)] * 3)[0]
          .mean(1)), y),
    "a language model, samples second": lambda m, x, y: F.cross_entropy(
        m(nn.TransformerEncoderLayer(4, 2, 8)(tokens(x))).view(-1, 5), y.repeat(3)),
    "a recurrent one, samples second": lambda m, x, y: F.cross_entropy(
        m(nn.LSTM(4, 4)(tokens(x))[0].reshape(-1, 4)), y.repeat(3)),
    "squeezed outputs": lambda m, x, y: F.mse_loss(m(x)[:, :1].squeeze(), y.float()),
    "convolution": lambda m, x, y: F.cross_entropy(
        m(nn.Conv1d(1, 3, 3, padding=1)(x[:, None]).mean(1)), y),
    "patches": lambda m, x, y: F.cross_entropy(
        m(F.unfold(x.view(-1, 1, 2, 2), 2).transpose(1, 2).flatten(1)), y),
    "pixels in another order": lambda m, x, y: F.cross_entropy(
        m(F.pixel_shuffle(x.view(-1, 4, 1, 1), 2).flatten(1)), y),
    "dimensions of one": lambda m, x, y: F.cross_entropy(
        m(x.view(-1, 1, 1, 4).permute(0, 3, 1, 2).flatten(1)), y),
    "enlarged images": lambda m, x, y: F.cross_entropy(
        m(F.interpolate(x.view(-1, 1, 2, 2), scale_factor=2).flatten(1)[:, :4]), y),
}  # fmt: skip
"""More losses of single samples: layers that move the batch dimension."""
