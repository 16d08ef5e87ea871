"""Blocks inside of which activations stay split, as in Megatron-LM (1909.08053).

The first layers' output features are split, and so are the last ones' input features, so nothing is
communicated between them.  What is between them must act on each feature, or each attention head,
by itself, and draw no random numbers, which depend on the shape.

Only a call of the whole block stays split.  A layer that is called by itself, or has a hook, takes
and returns full tensors.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from nbmgpu.strategies.module_copy import has_hooks

ELEMENTWISE = frozenset({
    nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.Mish, nn.Identity,
    nn.Hardswish, nn.Softplus, nn.ReLU6,
})  # fmt: skip
"""Modules that may be between two layers; a subclass may be anything."""

GRADIENTS_ADD_UP = "replicated_with_grad_allreduce"
"""The style in plans of Hugging Face's models for ``on_parts``."""


def _always() -> bool:
    return True


@dataclass(frozen=True, eq=False)
class SplitBlock:
    """A module that calls layers whose activations can stay split in between.

    Attributes:
        module: the module.
        first, last: its linear layers, split by output and by input features.
        between: other modules that would see split activations.
        on_parts: those of them whose parameters each rank uses for its features, such as a
            normalization of each attention head: the ranks' gradients add up.
        is_allowed: whether nothing outside of the block sees split activations now.
        is_certain: whether it is known that activations can stay split; otherwise a trial tells.
    """

    module: nn.Module
    first: tuple[nn.Module, ...]
    last: tuple[nn.Module, ...]
    between: tuple[nn.Module, ...] = ()
    on_parts: tuple[nn.Module, ...] = ()
    is_allowed: Callable[[], bool] = _always
    is_certain: bool = True

    @property
    def layers(self) -> tuple[nn.Module, ...]:
        """The linear layers."""
        return self.first + self.last

    def has_hooks(self) -> bool:
        """Whether a hook would see split activations."""
        return any(map(has_hooks, self.layers + self.between))


def split_blocks(root: nn.Module, ranks: int) -> Iterator[SplitBlock]:
    """Yield the blocks in ``root`` whose layers ``ranks`` can split; no layer is in two places."""
    known = [*_pairs_in_sequences(root), *_library_blocks(root, ranks)]
    inside = {layer for block in known for layer in block.layers}
    blocks = [*known, *(b for b in _likely_blocks(root) if inside.isdisjoint(b.layers))]
    uses = Counter(layer for block in blocks for layer in block.layers)
    for block in blocks:
        unshared = all(uses[layer] == 1 for layer in block.layers)
        if unshared and all(
            int(layer.get_parameter("weight").shape[0]) % ranks == 0 for layer in block.first
        ):
            yield block


def _pairs_in_sequences(root: nn.Module) -> Iterator[SplitBlock]:
    """Yield each pair of layers in an ``nn.Sequential`` with activation functions in between."""
    for module in root.modules():
        if type(module) is not nn.Sequential:
            continue
        first: nn.Module | None = None
        between: list[nn.Module] = []
        for layer in module:
            if _is_linear(layer) and first is not None:
                yield SplitBlock(module, (first,), (layer,), tuple(between))
                first = None
            elif _is_linear(layer):
                first, between = layer, []
            elif type(layer) in ELEMENTWISE:
                between.append(layer)
            else:
                first = None


def _likely_blocks(root: nn.Module) -> Iterator[SplitBlock]:
    """Yield the modules whose last linear layer may take what the others return, as in an MLP.

    They have no modules inside of others: a trial calls them several times.
    """
    for module in root.modules():
        children = list(module.children())
        layers = [child for child in children if _is_linear(child)]
        is_flat = not any(True for child in children for _ in child.children())
        is_called = type(module).forward is not nn.Module.forward
        known = type(module) is nn.Sequential or not is_called
        if is_flat and not known and len(set(layers)) > 1:
            yield likely_block(module, layers[:-1], layers[-1:])


def named_blocks(
    root: nn.Module, by_outputs: Collection[nn.Module], by_inputs: Collection[nn.Module], ranks: int
) -> Iterator[SplitBlock]:
    """Yield the innermost modules that have layers of both kinds, as the user's plan splits them.

    Args:
        root: the outermost module.
        by_outputs, by_inputs: the layers that are split by their output and input features.
        ranks: number of parts.
    """
    taken: set[nn.Module] = set()
    for module in reversed(list(root.modules())):  # inner ones first
        inside = [m for m in module.modules() if _is_linear(m) and m not in taken]
        first = [m for m in inside if m in by_outputs]
        last = [m for m in inside if m in by_inputs]
        if first and last:
            taken.update(first + last)
            if all(int(layer.get_parameter("weight").shape[0]) % ranks == 0 for layer in first):
                yield likely_block(module, first, last)


def likely_block(
    module: nn.Module, first: Sequence[nn.Module], last: Sequence[nn.Module]
) -> SplitBlock:
    """Return a block in which activations stay split between layers if a trial is right."""
    layers = {*first, *last}
    between = tuple(m for m in module.modules() if m is not module and m not in layers)
    return SplitBlock(module, tuple(first), tuple(last), between, is_certain=False)


def _library_blocks(root: nn.Module, ranks: int) -> Iterator[SplitBlock]:
    """Yield the blocks that the configurations of Hugging Face's models in ``root`` name."""
    for model in root.modules():
        config: Any = getattr(model, "config", None)
        plan = getattr(config, "base_model_tp_plan", None)
        is_base = getattr(model, "base_model", None) is model
        if not plan or not is_base or not _heads_are_divisible(config, ranks):
            continue

        def is_allowed(config: Any = config) -> bool:
            return bool(config._attn_implementation != "eager")  # which returns attention weights

        for name, module in model.named_modules():
            if not _draws(module):
                yield from _library_block(module, name, plan, is_allowed)


def _library_block(
    module: nn.Module, name: str, plan: Mapping[str, str], is_allowed: Callable[[], bool]
) -> Iterator[SplitBlock]:
    styles = {child: _style(f"{name}.{key}", plan) for key, child in module.named_children()}
    first = tuple(m for m, style in styles.items() if style == "colwise")
    last = tuple(m for m, style in styles.items() if style == "rowwise")
    # An adapter in place of one of them, such as peft's LoRA, would see split activations.
    named_are_linear = all(map(_is_linear, first + last))
    if first and last and named_are_linear and len(first + last) == sum(map(_is_linear, styles)):
        others = tuple(m for m in module.modules() if m is not module and m not in first + last)
        on_parts = tuple(m for m, style in styles.items() if style == GRADIENTS_ADD_UP)
        others_own = {p for m in others for p in m.parameters()}
        is_certain = others_own == {p for m in on_parts for p in m.parameters()}
        yield SplitBlock(module, first, last, others, on_parts, is_allowed, is_certain)


def _style(name: str, plan: Mapping[str, str]) -> str | None:
    return next((plan[p] for p in plan if fnmatch.fnmatchcase(name, p)), None)


def _is_linear(module: nn.Module) -> bool:
    """Whether a module is a plain linear layer with a weight of its own."""
    return type(module) is nn.Linear and module._parameters.get("weight") is not None


def _draws(module: nn.Module) -> bool:
    """Whether a module has a probability of dropout above zero."""
    return any("dropout" in name and value for name, value in vars(module).items()) or any(
        isinstance(inner, nn.Dropout) and inner.p for inner in module.modules()
    )


def _heads_are_divisible(config: Any, ranks: int) -> bool:
    heads = getattr(config, "num_attention_heads", ranks)
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return bool(heads % ranks == 0 and kv_heads % ranks == 0)
