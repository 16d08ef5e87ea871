"""The plan of ``--tp-plan``: which layers are split, by their names."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from nbmgpu.errors import StrategyError, closest_match, format_message

from .plan import is_splittable


@dataclass(frozen=True)
class NamedPlan:
    """Styles by patterns of names.

    Attributes:
        styles: ``colwise``, ``rowwise`` or ``replicate`` by pattern, the first that matches a name.
    """

    styles: dict[str, str]

    @staticmethod
    def of(words: Sequence[str]) -> NamedPlan | None:
        """Return the plan of words such as ``layers.*.fc1=colwise``; None without any."""
        pairs = (word.partition("=") for word in words)
        styles = {pattern: style for pattern, _, style in pairs}
        return NamedPlan(styles) if styles else None

    def layers_of(self, root: nn.Module, ranks: int) -> tuple[set[nn.Module], set[nn.Module]]:
        """Return the layers in ``root`` to split by input features, and by output features.

        A pattern is that of the whole name of a layer, or of its end: plans of Hugging Face's
        models leave out the name of the base model.

        Raises:
            StrategyError: a pattern matches no layer, or one that cannot be split so.
        """
        names = {name: module for name, module in root.named_modules() if name}
        used: set[str] = set()
        found: dict[str, set[nn.Module]] = {"colwise": set(), "rowwise": set(), "replicate": set()}
        for name, module in names.items():
            matching = [p for p in self.styles if _matches(name, p)]
            used.update(matching)
            if not matching:
                continue
            style = self.styles[matching[0]]
            if style != "replicate" and not is_splittable(module, style == "rowwise", ranks):
                raise _not_splittable(name, module, style, ranks)
            found[style].add(module)
        if missing := [pattern for pattern in self.styles if pattern not in used]:
            raise _no_layer(missing[0], list(names))
        return found["rowwise"], found["colwise"]


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"*.{pattern}")


def _no_layer(pattern: str, names: list[str]) -> StrategyError:
    near = closest_match(pattern, names) or next(iter(names), "")
    return StrategyError(
        format_message(
            f"--tp-plan: no layer is called {pattern}",
            "Names are those of model.named_modules(), with * for any text",
            f"--tp-plan {near}=colwise" if near else "no --tp-plan",
        )
    )


def _not_splittable(name: str, module: nn.Module, style: str, ranks: int) -> StrategyError:
    kinds = (
        "nn.Linear with as many input features as ranks"
        if style == "rowwise"
        else "nn.Linear, nn.Embedding and nn.Conv1d to 3d with as many output features as ranks"
    )
    return StrategyError(
        format_message(
            f"--tp-plan: {name}, a {type(module).__name__}, cannot be {style} on {ranks} ranks",
            f"{style}: {kinds} or more",
            f"{name}=replicate in the plan",
        )
    )
