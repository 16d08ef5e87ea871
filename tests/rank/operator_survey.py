"""What the rules of operators say of torch's own samples of operators, and whether it is right.

The samples are those of ``torch.testing._internal.common_methods_invocations.op_db``.  The first
dimension of an operand is the batch.  A whole batch has each row of the sample, and as many others.

    python operator_survey.py PART PARTS

prints what was found of some of them as JSON, by name.  It runs in a process of its own: torch's
tests change settings of the process that imports them.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from nbmgpu.rank.batch_dependence.dispatch_mode import SampleTrackingMode
from nbmgpu.rank.batch_dependence.tags import Batched, CrossSample, SampleSum, SingleSample, Tag

CRASHING = {"lu_unpack"}
"""Operators that end the process for some numbers of rows."""

MOST_SAMPLES = 12
"""Samples of an operator that are tried."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class Verdicts:
    """What was found of one operator.

    Attributes:
        name: of the operator.
        counts: outputs by verdict: ``local`` and ``sum`` are proven; ``combines`` and ``by
            position`` are reported to the user; ``unknown`` is not tracked; ``wrong`` is an error.
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
        try:
            verdicts = [*_verdicts(info.op, arguments, batched)]
        except Exception:  # it does not take as many rows
            continue
        found.counts.update(verdicts)
        if "wrong" in verdicts:
            found.wrong = str(tree_map(_described, arguments))
    return found


def main(part: int, parts: int) -> None:
    """Survey every operator whose index is ``part`` modulo ``parts``."""
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

    infos = [info for info in op_db if torch.float32 in info.dtypes][part::parts]
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


def _verdicts(
    operator: Callable[..., Any], arguments: Arguments, batched: list[int]
) -> Iterator[str]:
    """Yield what is true of each output."""
    shard = _copied(arguments, batched, lambda rows: rows.clone())
    rest = _copied(arguments, batched, _others)
    whole = _copied(arguments, batched, lambda rows: torch.cat([rows, _others(rows)]))
    of_shard, of_rest, of_whole = (_tracked(operator, a, batched) for a in (shard, rest, whole))
    samples = len(_tensors(shard)[batched[0]])
    for (out, tag), (other, _), (expected, expected_tag) in zip(
        of_shard, of_rest, of_whole, strict=True
    ):
        if isinstance(tag, CrossSample):
            yield "combines"
        elif isinstance(tag, SingleSample) or (
            isinstance(tag, Batched) and {*tag.samples} != {*range(samples)}
        ):
            yield "by position"
        elif isinstance(tag, Batched) and isinstance(expected_tag, Batched):
            yield "local" if _has_rows(out, tag, expected, expected_tag) else "wrong"
        elif isinstance(tag, SampleSum) and not tag.adds_subsets:
            yield "sum" if _adds_up(out, other, expected) else "wrong"
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


def _has_rows(out: Tensor, tag: Batched, whole: Tensor, whole_tag: Batched) -> bool:
    """Return whether each sample has the same numbers in the whole batch."""
    try:
        rows, expected = _rows(out, tag), _rows(whole, whole_tag)
    except IndexError:  # there is no such dimension
        return False
    return all(s in expected and _equal(row, expected[s]) for s, row in rows.items())


def _rows(out: Tensor, tag: Batched) -> dict[int, Tensor]:
    dim = out.dim() + tag.dim
    rows = defaultdict(list)
    for index in range(out.shape[dim]):
        sample = tag.samples[(index // tag.block_size) % len(tag.samples)]
        rows[sample].append(out.select(dim, index))
    return {sample: torch.stack(found) for sample, found in rows.items()}


def _adds_up(one: Tensor, other: Tensor, whole: Tensor) -> bool:
    """Return whether that of the whole batch is the sum or the mean of those of two halves."""
    one, other, whole = (tensor.double() for tensor in (one, other, whole))
    return _equal(whole, one + other) or _equal(whole, (one + other) / 2)


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
    main(*map(int, sys.argv[1:]))
