"""Which modules are split over ranks, and how."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

Style = Literal["outputs", "inputs", "rows"]
"""What is split: output features or input features of a layer, or rows of an embedding table."""

CONVOLUTIONS = frozenset({nn.Conv1d, nn.Conv2d, nn.Conv3d})


@dataclass(frozen=True, eq=False)
class ModulePlan:
    """How one module is split.

    Attributes:
        module: the module.
        style: what is split.
        dim: dimension of the weight that is split.
        out_features: size of the full output along ``output_dim``.
        output_dim: dimension of the features in the output.
        size_attribute: attribute of the module that has the number of output features.
    """

    module: nn.Module
    style: Style
    dim: int
    out_features: int = 0
    output_dim: int = -1
    size_attribute: str = ""

    def split_parameters(self) -> dict[str, int]:
        """Return the dimension along which each split parameter is split, by name."""
        split = {"weight": self.dim}
        if self.style == "outputs" and self.module._parameters.get("bias") is not None:
            split["bias"] = 0
        return split


def parallel_plan(
    root: nn.Module,
    by_inputs: Collection[nn.Module],
    ranks: int,
    chosen: Collection[nn.Module] | None = None,
) -> Iterator[ModulePlan]:
    """Plan how the modules in ``root`` are split over ``ranks``.

    Args:
        root: the outermost module.
        by_inputs: linear layers to split by input features; others are by output features.
        ranks: number of parts.
        chosen: the modules to split; None for all that can be.
    """
    for module in root.modules():
        plan = _plan_of(module, by_inputs) if chosen is None or module in chosen else None
        if plan is not None and _can_split(plan, ranks):
            yield plan


def is_splittable(module: nn.Module, by_inputs: bool, ranks: int) -> bool:
    """Whether a module can be split over ``ranks``, by its input or output features."""
    plan = _plan_of(module, (module,) if by_inputs else ())
    if plan is None or (by_inputs and plan.style != "inputs"):
        return False
    return _can_split(plan, ranks)


def _plan_of(module: nn.Module, by_inputs: Collection[nn.Module]) -> ModulePlan | None:
    """Return the plan of a module with a known forward pass."""
    cls, forward = type(module), type(module).forward
    if isinstance(module, nn.Linear) and forward is nn.Linear.forward:
        if module in by_inputs:
            return ModulePlan(module, "inputs", 1)
        return ModulePlan(module, "outputs", 0, module.out_features)
    if isinstance(module, nn.Embedding) and forward is nn.Embedding.forward:
        plain = module.max_norm is None and not module.sparse and not module.scale_grad_by_freq
        return ModulePlan(module, "rows", 0) if plain else None
    conv: Any = module
    if cls in CONVOLUTIONS and conv.groups == 1:
        return ModulePlan(module, "outputs", 0, conv.out_channels, 1 - conv.weight.dim())
    if _is_transposed_linear(cls):
        return ModulePlan(module, "outputs", 1, conv.nf, size_attribute="nf")
    return None


def _is_transposed_linear(cls: type) -> bool:
    """Whether ``cls`` is the ``Conv1D`` of transformers, GPT-2's linear layer."""
    return cls.__name__ == "Conv1D" and cls.__module__ == "transformers.pytorch_utils"


def _can_split(plan: ModulePlan, ranks: int) -> bool:
    weight: Any = plan.module._parameters.get("weight")
    return weight is not None and bool(weight.shape[plan.dim] >= ranks)
