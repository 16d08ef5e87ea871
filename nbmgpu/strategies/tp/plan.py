"""Which modules are split over ranks, and how."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from .linear_pairs import linear_pairs

Style = Literal["colwise", "colwise_gather", "rowwise", "rowwise_split", "embedding"]
"""How a module is split.

``colwise`` splits output features, and ``rowwise`` input features, of a linear layer (Megatron-LM,
1909.08053).  Between the two, activations are split; ``colwise_gather`` gathers the output, and
``rowwise_split`` splits a full input.  ``embedding`` splits the rows of a table.
"""

LIBRARY_STYLES: Mapping[str, Style] = {
    "colwise": "colwise",
    "rowwise": "rowwise",
    "colwise_rep": "colwise_gather",
    "colwise_gather_output": "colwise_gather",
    "rowwise_rep": "rowwise_split",
    "rowwise_split_input": "rowwise_split",
    "embedding_rowwise": "embedding",
}
"""Styles of Hugging Face's ``tp_plan``.  Modules with another one are split as without a plan."""


@dataclass(frozen=True, eq=False)
class ModulePlan:
    """How one module is split.

    Attributes:
        module: the module.
        style: what is split.
        dim: dimension of the weight that is split.
        out_features: size of the full output along ``output_dim``.
        output_dim: dimension of the features in the output.
        blocks: number of blocks of the output that are split separately.
        size_attribute: attribute of the module that has the number of output features.
    """

    module: nn.Module
    style: Style
    dim: int
    out_features: int = 0
    output_dim: int = -1
    blocks: int = 1
    size_attribute: str = ""

    def split_parameters(self) -> dict[str, int]:
        """Return the dimension along which each split parameter is split, by name."""
        split = {"weight": self.dim}
        if self.style.startswith("colwise") and self.module._parameters.get("bias") is not None:
            split["bias"] = 0
        return split


def parallel_plan(root: nn.Module, ranks: int) -> Iterator[ModulePlan]:
    """Plan how the modules in ``root`` are split over ``ranks``.

    Hugging Face's models have a plan.  In others, linear layers gather their outputs, except in
    blocks whose activations can stay split.
    """
    styles: dict[nn.Module, Style] = dict(linear_pairs(root, ranks))
    styles |= _library_styles(root, ranks)
    for module in root.modules():
        plan = _plan_of(module, styles.get(module))
        if plan is not None and _can_split(plan, ranks):
            yield plan


def _plan_of(module: nn.Module, style: Style | None) -> ModulePlan | None:
    """Return the plan of a module of a known class, with ``style`` if given."""
    forward = type(module).forward
    if isinstance(module, nn.Linear) and forward is nn.Linear.forward:
        style = style or "colwise_gather"
        dim = 0 if style.startswith("colwise") else 1
        return ModulePlan(module, style, dim, module.out_features)
    if isinstance(module, nn.Embedding) and forward is nn.Embedding.forward:
        plain = module.max_norm is None and not module.sparse and not module.scale_grad_by_freq
        return ModulePlan(module, "embedding", 0) if plain else None
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) and module.groups == 1:
        output_dim = 1 - module.weight.dim()
        return ModulePlan(module, "colwise_gather", 0, module.out_channels, output_dim)
    if _is_transposed_linear(module):
        return ModulePlan(module, "colwise_gather", 1, module.nf, size_attribute="nf")  # type: ignore[arg-type]
    return None


def _is_transposed_linear(module: nn.Module) -> bool:
    """Whether ``module`` is a ``Conv1D`` of transformers, GPT-2's linear layer."""
    cls = type(module)
    return cls.__name__ == "Conv1D" and cls.__module__ == "transformers.pytorch_utils"


def _can_split(plan: ModulePlan, ranks: int) -> bool:
    """Whether all ranks get a part, of equal size where activations stay split."""
    weight: Any = plan.module._parameters.get("weight")
    if weight is None or weight.is_meta:
        return False
    size = weight.shape[plan.dim] // plan.blocks
    if plan.style in ("colwise", "rowwise"):
        return bool(size % ranks == 0)
    return bool(size >= ranks)


def _library_styles(root: nn.Module, ranks: int) -> dict[nn.Module, Style]:
    """Return the styles that the configurations of Hugging Face's models in ``root`` name."""
    styles: dict[nn.Module, Style] = {}
    for model in root.modules():
        config = getattr(model, "config", None)
        named = getattr(config, "base_model_tp_plan", None)
        is_base = getattr(model, "base_model", None) is model
        if not named or not is_base or not _heads_are_divisible(config, ranks):
            continue
        patterns = [(name, LIBRARY_STYLES.get(str(style))) for name, style in named.items()]
        for name, module in model.named_modules():
            style = _match(name, patterns)
            if style is not None:
                styles[module] = style
    return styles


def _match(name: str, patterns: Sequence[tuple[str, Style | None]]) -> Style | None:
    return next((s for p, s in patterns if fnmatch.fnmatchcase(name, p)), None)


def _heads_are_divisible(config: Any, ranks: int) -> bool:
    heads = getattr(config, "num_attention_heads", ranks)
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return bool(heads % ranks == 0 and kv_heads % ranks == 0)
