"""An operation that was seen, with the tags of what it was given."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from torch import Tensor

from .row_tags import Coupled, Shape, Tag

Found = Sequence[Tag | None]


@dataclass(frozen=True)
class Call:
    """An operation with its arguments, of which ``tensors`` have ``tags``.

    ``shapes`` are the tensors' as they were before the operation; ``writes`` says that it writes to
    the first of its arguments.
    """

    name: str
    named: dict[str, Any]
    tensors: list[Tensor]
    tags: list[Tag | None]
    shapes: list[Shape]
    writes: bool = False

    @classmethod
    def of(cls, func: Any, args: Any, kwargs: Any, known: Any) -> Call | None:
        """Return what there is to know of a call; None if no argument has a tag."""
        tensors = list(_tensors((args, kwargs)))
        tags = [known.get(tensor) for tensor in tensors]
        if not any(tag is not None for tag in tags):
            return None
        # Of higher order, or writing where compiled code wants it, and goes on unseen.
        if not hasattr(func, "_schema") or func._overloadname.endswith("out"):
            return cls("", {}, tensors, tags, [])
        schema = func._schema
        named = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
        named.update(zip((argument.name for argument in schema.arguments), args, strict=False))
        named.update(kwargs)
        name = schema.name.partition("::")[2]
        if schema.name.startswith("aten::") and schema.is_mutable:
            name = name.removesuffix("_")
        space = "" if schema.name.startswith("aten::") else schema.name.partition("::")[0]
        shapes = [tuple(tensor.shape) for tensor in tensors]
        alias = schema.arguments[0].alias_info if schema.arguments else None
        writes = alias is not None and bool(alias.is_write)
        return cls(f"{space}.{name}" if space else name, named, tensors, tags, shapes, writes)

    def tag(self, name: str) -> Tag | None:
        """Return the tag of the argument ``name``."""
        given = self.named.get(name)
        if not isinstance(given, Tensor):
            return None
        return next((t for x, t in zip(self.tensors, self.tags, strict=True) if x is given), None)

    @property
    def first(self) -> Tag:
        """The first tag there is."""
        return next(tag for tag in self.tags if tag is not None)

    @property
    def shape(self) -> Shape:
        """The shape of the first tensor with a tag."""
        pairs = zip(self.shapes, self.tags, strict=True)
        return next(shape for shape, tag in pairs if tag is not None)

    def coupled(self) -> Coupled:
        """Return the tag of what this operation takes from several samples."""
        return Coupled(self.name.lstrip("_"))


def _tensors(given: Any) -> Iterator[Tensor]:
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, tuple | list):
        for item in given:
            yield from _tensors(item)
    elif isinstance(given, dict):
        yield from _tensors(list(given.values()))


def seen_by(tags: Sequence[Tag]) -> frozenset[int]:
    """Return all samples of ``tags``."""
    return reduce(operator.or_, (tag.seen for tag in tags), frozenset())
