"""An observed operator call, with the tags of its operands."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from .tags import CrossSample, Shape, Tag

OutputTags = Sequence[Tag | None]


@dataclass(frozen=True)
class OpCall:
    """A call of an ATen or custom operator.

    Attributes:
        name: the operator's name, without namespace ``aten``, overload and in-place underscore.
        arguments: all arguments by name, defaults included.
        tensors: the tensors among the arguments.
        tags: their tags.
        shapes: their shapes before the operation.
        writes: whether the operator writes to its first argument.
        is_pointwise: whether torch declares that each element of the output depends on one element
            of each operand.
    """

    name: str
    arguments: dict[str, Any]
    tensors: list[Tensor]
    tags: list[Tag | None]
    shapes: list[Shape]
    writes: bool = False
    is_pointwise: bool = False

    @classmethod
    def from_dispatch(cls, func: Any, args: Any, kwargs: Any, known: Any) -> OpCall | None:
        """Describe a call as a dispatch mode gets it; None if no argument has a tag.

        Args:
            func: the operator overload.
            args, kwargs: its arguments.
            known: the tags of tensors.
        """
        tensors = list(_tensors((args, kwargs)))
        tags = [known.get(tensor) for tensor in tensors]
        if not any(tag is not None for tag in tags):
            return None
        # A higher-order operator; or an ``out=`` overload, which compiled code uses to write to
        # its own buffers and whose later use cannot be observed.
        if not hasattr(func, "_schema") or func._overloadname.endswith("out"):
            return cls("", {}, tensors, tags, [])
        schema = func._schema
        arguments = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
        arguments.update(zip((argument.name for argument in schema.arguments), args, strict=False))
        arguments.update(kwargs)
        name = schema.name.partition("::")[2]
        if schema.name.startswith("aten::") and schema.is_mutable:
            name = name.removesuffix("_")
        namespace = "" if schema.name.startswith("aten::") else schema.name.partition("::")[0]
        shapes = [tuple(tensor.shape) for tensor in tensors]
        alias = schema.arguments[0].alias_info if schema.arguments else None
        writes = alias is not None and bool(alias.is_write)
        name = f"{namespace}.{name}" if namespace else name
        is_pointwise = torch.Tag.pointwise in func.tags
        return cls(name, arguments, tensors, tags, shapes, writes, is_pointwise)

    def tag_of(self, name: str) -> Tag | None:
        """Return the tag of the argument ``name``."""
        value = self.arguments.get(name)
        return self.tag_of_tensor(value) if isinstance(value, Tensor) else None

    def tag_of_tensor(self, tensor: Tensor) -> Tag | None:
        """Return the tag of one of ``tensors``."""
        return next((t for x, t in zip(self.tensors, self.tags, strict=True) if x is tensor), None)

    @property
    def first_tag(self) -> Tag:
        """The tag of the first operand that has one."""
        return next(tag for tag in self.tags if tag is not None)

    @property
    def first_shape(self) -> Shape:
        """The shape of the first operand that has a tag."""
        pairs = zip(self.shapes, self.tags, strict=True)
        return next(shape for shape, tag in pairs if tag is not None)

    def cross_sample(self) -> CrossSample:
        """Return the tag of an output in which this operator combines several samples."""
        return CrossSample(self.name.lstrip("_"))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def sources_of(tags: Sequence[Tag]) -> frozenset[int]:
    """Return all samples of ``tags``."""
    return reduce(operator.or_, (tag.sources for tag in tags), frozenset())
