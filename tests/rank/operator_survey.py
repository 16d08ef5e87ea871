"""What the rules of operators say of torch's own samples of operators, and whether it is right.

The samples are those of ``torch.testing._internal.common_methods_invocations.op_db``.  The first
dimension of an operand is the batch.  A whole batch has each row of the sample, and others: as many
of them, or one less.

    python operator_survey.py

prints what was found as JSON, by name.  It runs in a process of its own: torch's
tests change settings of the process that imports them.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from nbmgpu.rank.batch_dependence.dispatch_mode import SampleTrackingMode
from nbmgpu.rank.batch_dependence.tags import Batched, CrossSample, SampleSum, SingleSample, Tag

CRASHING = {"lu_unpack"}
"""Operators that end the process for some numbers of rows."""

MOST_SAMPLES = 12
"""Samples of an operator that are tried."""

KNOWN = {
    "_softmax_backward_data": "a backward pass is not followed",
    "argsort": "positions in a shard",
    "argwhere": "positions in a shard",
    "gradient": "coordinates with one per sample",
    "index_select": "one index for samples and features alike",
    "linalg.vander": "as many powers as samples",
    "masked_scatter": "more elements of a sample than its mask has",
    "meshgrid.list_of_tensors": "a grid of samples with samples",
    "meshgrid.variadic_tensors": "a grid of samples with samples",
    "nn.functional.bilinear": "a weight with a row per sample",
    "nn.functional.conv1d": "a weight with a row per sample",
    "nn.functional.conv2d": "a weight with a row per sample",
    "nn.functional.conv3d": "a weight with a row per sample",
    "nn.functional.multi_head_attention_forward": "a weight with a row per sample",
    "nn.functional.multi_margin_loss": "samples as classes of one",
    "nn.functional.multilabel_margin_loss": "samples as classes of one",
    "nonzero": "positions in a shard",
    "sort": "positions in a shard",
}
"""Samples for which the rule is wrong, as a batch does not look like that, by operator."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class Verdicts:
    """What was found of one operator.

    Attributes:
        name: of the operator.
        counts: outputs by verdict: ``local`` and ``sum`` are proven; ``combines`` and ``by
            position`` are reported to the user, ``random`` where numbers are drawn; ``unknown`` is
            not tracked; ``wrong`` is an error.
            ``backward`` counts calls of which the gradients are proven as well.
        wrong: a sample for which the rule is wrong.
    """

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    wrong: str = ""


def survey(info: Any) -> Verdicts:
    """Try the samples of an operator, an ``OpInfo``."""
    name = ".".join(filter(None, (info.name, info.variant_test_name)))
    found = Verdicts(name)
    samples = list(info.sample_inputs("cpu", torch.float32, requires_grad=False))
    for arguments, batched in _batches(samples):
        for lacking in (0, 1):
            try:
                shares = _shares(arguments, batched, lacking)
                is_random = _draws(info.op, shares.shard)
                verdicts = [*_verdicts(info.op, shares, batched, is_random)]
            except Exception:  # it does not take as many rows
                continue
            if info.supports_autograd and {*verdicts} in ({"local"}, {"sum"}):
                verdicts += _of_backward(info.op, shares, batched, verdicts)
            found.counts.update(verdicts)
            if "wrong" in verdicts:
                found.wrong = str(tree_map(_described, arguments))
    return found


def main() -> None:
    """Survey every operator."""
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

    infos = [info for info in op_db if torch.float32 in info.dtypes]
    found = [survey(info) for info in infos if info.name not in CRASHING]
    print(json.dumps({each.name: [each.counts, each.wrong] for each in found}))


def _batches(samples: list[Any]) -> Iterator[tuple[Arguments, list[int]]]:
    """Yield arguments, and which of their tensors are batches: the first, or all as long."""
    tried = 0
    for sample in samples:
        arguments = ((sample.input, *sample.args), sample.kwargs)
        tensors = _tensors(arguments)
        first = [id(tensor) for tensor in _tensors(sample.input)]
        if not first or not tensors[0].dim() or len(tensors[0]) < 2:
            continue
        aligned = [i for i, t in enumerate(tensors) if t.dim() and len(t) == len(tensors[0])]
        of_input = [i for i in aligned if id(tensors[i]) in first]
        yield arguments, of_input
        if aligned != of_input:
            yield arguments, aligned
        tried += 1
        if tried == MOST_SAMPLES:
            return


@dataclass(frozen=True)
class Shares:
    """Arguments of a call with the rows of one rank, those of the other, and all of them."""

    shard: Arguments
    rest: Arguments
    whole: Arguments

    @property
    def all(self) -> tuple[Arguments, Arguments, Arguments]:
        return self.shard, self.rest, self.whole


def _shares(arguments: Arguments, batched: list[int], lacking: int) -> Shares:
    """Return shares of which the other has ``lacking`` rows less than the sample."""

    def others(rows: Tensor) -> Tensor:
        return _others(rows)[: len(rows) - lacking]

    return Shares(
        _copied(arguments, batched, lambda rows: rows.clone()),
        _copied(arguments, batched, others),
        _copied(arguments, batched, lambda rows: torch.cat([rows, others(rows)])),
    )


def _draws(operator: Callable[..., Any], arguments: Arguments) -> bool:
    """Return whether an operator draws random numbers: other ones for shards."""
    args, kwargs = _copied(arguments, [], torch.clone)
    with _Operators() as called:
        operator(*args, **kwargs)
    return any(torch.Tag.nondeterministic_seeded in func.tags for func in called.operators)


class _Operators(TorchDispatchMode):
    """Records the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.add(func)
        return func(*args, **kwargs or {})


def _verdicts(
    operator: Callable[..., Any], shares: Shares, batched: list[int], is_random: bool
) -> Iterator[str]:
    """Yield what is true of each output."""
    of_shard, of_rest, of_whole = (_tracked(operator, each, batched) for each in shares.all)
    samples, others = (len(_tensors(each)[batched[0]]) for each in shares.all[:2])
    for (out, tag), (other, other_tag), (expected, expected_tag) in zip(
        of_shard, of_rest, of_whole, strict=True
    ):
        if is_random:
            yield "random"
        elif isinstance(tag, CrossSample):
            yield "combines"
        elif isinstance(tag, SingleSample) or (
            isinstance(tag, Batched) and {*tag.samples} != {*range(samples)}
        ):
            yield "by position"
        elif isinstance(tag, Batched) and isinstance(expected_tag, Batched):
            right = _has_rows(out, tag, expected, expected_tag, 0)
            if right and isinstance(other_tag, Batched):
                right = _has_rows(other, other_tag, expected, expected_tag, samples)
            yield "local" if right else "wrong"
        elif isinstance(tag, SampleSum) and not tag.adds_subsets:
            part = samples / (samples + others)
            yield "sum" if _adds_up(out, other, expected, part) else "wrong"
        elif not _equal(out, expected):
            yield "unknown"


def _tracked(
    operator: Callable[..., Any], arguments: Arguments, batched: list[int]
) -> list[tuple[Tensor, Tag | None]]:
    """Return the outputs of a call, with their tags."""
    tensors = [_tensors(arguments)[index] for index in batched]
    mode = SampleTrackingMode()
    mode.add_batch(tensors, len(tensors[0]), 2 * len(tensors[0]), 1)
    torch.manual_seed(1)
    with torch.no_grad(), mode:
        outputs = operator(*arguments[0], **arguments[1])
    return [(out, mode.tags.get(out)) for out in _tensors(outputs) if not out.is_sparse]


def _has_rows(out: Tensor, tag: Batched, whole: Tensor, whole_tag: Batched, before: int) -> bool:
    """Return whether each sample has the same numbers in the whole batch, ``before`` further on."""
    try:
        rows, expected = _rows(out, tag), _rows(whole, whole_tag)
    except IndexError:  # there is no such dimension
        return False
    shared = ((row, expected.get(before + s)) for s, row in rows.items())
    return all(other is not None and _equal(row, other) for row, other in shared)


def _rows(out: Tensor, tag: Batched) -> dict[int, Tensor]:
    dim = out.dim() + tag.dim
    rows = defaultdict(list)
    for index in range(out.shape[dim]):
        sample = tag.samples[(index // tag.block_size) % len(tag.samples)]
        rows[sample].append(out.select(dim, index))
    return {sample: torch.stack(found) for sample, found in rows.items()}


def _adds_up(one: Tensor, other: Tensor, whole: Tensor, part: float) -> bool:
    """Return whether that of the whole batch is the sum or the mean of those of its shares.

    ``part`` of the samples are in the first.
    """
    one, other, whole = (tensor.double() for tensor in (one, other, whole))
    mean = part * one + (1 - part) * other
    return _equal(whole, one + other) or _equal(whole, mean)


def _of_backward(
    operator: Callable[..., Any], shares: Shares, batched: list[int], verdicts: list[str]
) -> list[str]:
    """Return whether gradients are right: rows in a batch, the sum of both shares elsewhere.

    Of a mean, each share counts by its samples.  Nothing if some output depends on no sample, or no
    gradient is defined.
    """
    try:
        gradients = [[*_gradients(operator, each, verdicts)] for each in shares.all]
    except RuntimeError:
        return []
    found = [(i, each) for i, each in enumerate(zip(*gradients, strict=True)) if None not in each]
    samples, others = (len(_tensors(each)[batched[0]]) for each in shares.all[:2])
    part = samples / (samples + others)

    def is_right(a: float, b: float) -> bool:
        return all(
            _equal(torch.cat([a * one, b * other]) if i in batched else a * one + b * other, whole)
            for i, (one, other, whole) in found
        )

    right = is_right(1, 1) or ("sum" in verdicts and is_right(part, 1 - part))
    return ["backward" if right else "wrong"] if found else []


def _gradients(
    operator: Callable[..., Any], arguments: Arguments, verdicts: list[str]
) -> Iterator[Tensor | None]:
    """Yield the gradient of each operand, for a loss that each element changes differently."""
    tensors = _tensors(arguments)
    for leaf in tensors:
        leaf.requires_grad_(leaf.is_floating_point())
    outputs = _tensors(operator(*arguments[0], **arguments[1]))
    if len(outputs) == len(verdicts) and all(out.dtype == torch.float32 for out in outputs):
        terms = outputs if "sum" in verdicts else [out.asinh() for out in outputs]
        torch.stack([term.sum() for term in terms]).sum().backward()
    for tensor in tensors:
        yield tensor.grad


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return torch.allclose(one, other.to(one.dtype), rtol=1e-3, atol=1e-4, equal_nan=True)


def _others(rows: Tensor) -> Tensor:
    """Return other rows of the same kind, in another order."""
    rolled = rows.roll(1, 0)
    return 0.9 * rolled + 0.05 if rows.is_floating_point() else rolled


def _copied(
    arguments: Arguments, batched: list[int], change: Callable[[Tensor], Tensor]
) -> Arguments:
    """Return a copy of arguments, with other batches."""
    chosen = {id(_tensors(arguments)[index]) for index in batched}

    def copied(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return change(value) if id(value) in chosen else value.clone()

    result: Arguments = tree_map(copied, arguments)
    return result


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _described(value: Any) -> Any:
    return f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else value


if __name__ == "__main__":
    main()
