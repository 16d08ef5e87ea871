"""Loops whose numbers depend on the batch size are detected from their source."""

import sys

import pytest
from test_loader_loops import Probe, answer

from nbmgpu.rank.source_analysis.batch_size_use import loop_compares_batch_size, loop_counts_samples

COUNTING = [
    "total += loss.item() * x.size(0)",
    "total += loss.item() * len(x)",
    "n += y.shape[0]",
    "total = total + loss.item() * len(x)",
    "n, d = x.shape; total += loss.item() * n",
    "n = x.size(0); total += loss.item() * n",
    "n = x.shape[0]; total += n",
    "shape = x.shape; total += loss.item() * shape[0]",
    "losses.append(loss.item() / len(x))",
    "images = x.to(0); total += int(len(images) * right)",
    "total += float(loss) / y.size(0)",
    "right += (model(x).argmax(1) == y).sum() / len(y)",
    "out = model(x); total += loss.item() * out.size(0)",
    "show(x[0]); total += loss.item() * len(x)",
    "total += loss.item() * len(x['labels'])",
    "total += loss.item() * len(x[0])",
    "meter.update(loss.item(), x.size(0))",
    "meter.update(float(loss), n=len(x))",
    "seen = (y + 1) * len(x)",
    "losses.append(loss.item() * len(x))",
    "meter.update(n=1, value=loss.item() * x.size(0))",
    "total += train_on(x, y)",
    "losses.append(train_on(x, y))",
]
NOT_COUNTING = [
    "total += loss.item()",
    "x = x.view(x.size(0), -1)",
    "n = len(x)",
    "total += loss.item() / len(loader)",
    "loss += cross_entropy(out.view(-1, out.size(-1)), y.view(-1))",
    "loss /= len(x)",
    "loss = loss / x.size(0)",
    "outs = model(x); loss += criterion(outs[0], y) / len(outs)",
    "parts = [f(x)]; mean = sum(part.item() for part in parts) / len(parts)",
    "loss += cross_entropy(out.view(x.size(0), -1), y)",
    "mean = right.item() / len(dataset)",
    "for word in x: total += len(word)",
    "n, steps, d = x.shape; loss += y.sum() / steps",
    "width = x.shape[1]; loss = loss + y.sum() / width",
    "trainer.size = x.size(0); loss += trainer.alpha * y",
    "sizes[epoch] = len(x); total += epoch",
    "loss = cross_entropy(model(x), y) * len(x)",
    "metric.update(model(x), y)",
    "bar.update(len(x))",
    "a, b = x[0], x[1]; total += loss.item() * len(x)",
    "one, n = give_both(x, y); losses.append(one)",
    "total += width_of(x)",
]


class CountingProbe(Probe):
    """A loader that checks whether its loop sums batch sizes."""

    def __iter__(self):
        self.answer = loop_counts_samples(sys._getframe(1))
        return iter(())


FUNCTIONS = """
def train_on(x, y):
    loss = model(x)
    return loss.item() * len(x)

def give_both(x, y):
    return model(x).item(), len(x)

def width_of(x):
    return x.mean().item() * x.size(1)
"""


@pytest.mark.parametrize("line", [*COUNTING, *NOT_COUNTING])
def test_sums_of_batch_sizes_are_detected(line):
    loop = f"for x, y in loader:\n    {line}\n    loss.backward()"
    assert answer(FUNCTIONS + loop, CountingProbe) is (line in COUNTING)


COMPARING = [
    "if x.size(0) != batch_size: continue",
    "if len(x) < 8: break",
    "images, labels = x.to(0), y.to(0)\n    if images.shape[0] != batch_size: continue",
    "n = len(y)\n    if n == 1: continue",
    "if x['images'].shape[0] < 8: continue",
    "if len(x[0]) != size: continue",
    "show(x[0])\n    if len(x) < 8: continue",
    "with amp:\n        h = x.to(0)\n        h = h if h.size(0) == size else pad(h)",
    "images = x['images']\n    if images.size(0) < 8: continue",
]
NOT_COMPARING = [
    "if len(y.shape) > 1: y = y.squeeze(1)",
    "if len(x.size()) == 3: x = x[0]",
    "if len(x) == 2: a, b = x",
    "images = x[0]\n    if len(x) == 3: weights = x[2]",
    "if len(x) == 3: images = x['images']",
    "if x.size(dim=1) > 512: x = x[:, :512]",
    "if len(losses) > 100: break",
    "if x.size(1) > 512: x = x[:, :512]",
    "if x.shape[0] != y.shape[0]: raise ValueError",
    "if step % len(loader) == 0: save()",
    "history = history + [loss.item()]\n    if len(history) > 5: break",
    "for word in x:\n        if len(word) > 5: continue",
    "if len(x) == 2: out = model(x[0], x[1])",
    "out = model(x)\n    if out.size(0) != y.size(0): raise ValueError",
]


class ComparisonProbe(Probe):
    """A loader that checks whether its loop compares the batch size."""

    def __iter__(self):
        self.answer = loop_compares_batch_size(sys._getframe(1))
        return iter(())


@pytest.mark.parametrize("line", [*COMPARING, *NOT_COMPARING])
def test_comparisons_of_batch_sizes_are_detected(line):
    source = f"for x, y in loader:\n    {line}\n    loss.backward()"
    assert answer(source, ComparisonProbe) is (line in COMPARING)
