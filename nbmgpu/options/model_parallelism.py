"""How the options of meshes, pipelines and tensor parallelism are validated; see ``values``."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nbmgpu.errors import OptionError, closest_match, format_message
from nbmgpu.strategies.mesh_sizes import dimension

from .values import InvalidValueError, Problem, list_of, names_of

if TYPE_CHECKING:
    from .run_options import RunOptions

_read_layers = names_of(
    re.compile(r"\w+(\.\w+)*").fullmatch, "layer",
    "Names as model.named_modules() has them, such as layers.4,layers.8",
)  # fmt: skip


def validate_split_points(value: object) -> tuple[str, ...]:
    """Return the names of layers, without duplicates."""
    return () if value in (None, (), "") else _read_layers(value)


def validate_mesh(value: object) -> tuple[str, ...]:
    """Return the dimensions of a device mesh as words such as ``dp=2``."""
    if value in (None, (), ""):
        return ()
    items = value.items() if isinstance(value, Mapping) else None
    given = [f"{name}={size}" for name, size in items] if items else list(map(str, list_of(value)))
    words = [re.fullmatch(r"([a-z_]+)=([1-9]\d*)", word) for word in given]
    valid = tuple(f"{dimension(word[1])}={word[2]}" for word in words if word)
    names = [word.partition("=")[0] for word in valid]
    if len(valid) == len(given) == len(set(names)):
        return valid
    problem = Problem(
        f"{','.join(given)!r} is not a device mesh",
        "A mesh is given by the size of each dimension: dp=2,tp=2",
    )
    raise InvalidValueError(problem, valid if len(set(names)) == len(valid) and valid else ())


STYLES = {
    "colwise": "colwise", "colwise_rep": "colwise", "colwise_gather_output": "colwise",
    "rowwise": "rowwise", "rowwise_rep": "rowwise", "rowwise_split_input": "rowwise",
    "replicate": "replicate", "replicated": "replicate",
    "ColwiseParallel": "colwise", "RowwiseParallel": "rowwise",
}  # fmt: skip
"""How a layer is split, under the names of Hugging Face's plans and of torch's ParallelStyles."""


def validate_tp_plan(value: object) -> tuple[str, ...]:
    """Return a plan as words such as ``layers.*.fc1=colwise``, or the name of a variable.

    ``auto``, as Hugging Face's ``tp_plan="auto"``, is the plan that is found without the option.
    """
    if value in (None, (), "", "auto", ("auto",)):
        return ()
    if isinstance(value, Mapping):
        pairs = [(str(name), _style_name(style)) for name, style in value.items()]
    else:
        if isinstance(value, str) and value.startswith("{"):  # a dict, as it is printed
            value = re.sub(r":[\s,]*", "=", re.sub("[{}'\"]", "", value))
        words = list(map(str, list_of(value)))
        if len(words) == 1 and words[0].isidentifier():
            return (words[0],)
        pairs = [(name, style) for name, _, style in (word.partition("=") for word in words)]
    valid = tuple(f"{name}={STYLES[style]}" for name, style in pairs if style in STYLES and name)
    if len(valid) == len(pairs):
        return valid
    name, style = next((n, s) for n, s in pairs if s not in STYLES or not n)
    near = closest_match(style.lower(), list(STYLES)) or "colwise"
    allowed = (
        "A plan gives names of layers, with wildcards, the styles colwise (output features are "
        "split), rowwise (input features) or replicate: layers.*.fc1=colwise,layers.*.fc2=rowwise"
    )
    if "sequence" in style.lower():
        allowed += ". Activations are split along the sequence by --sequence-parallel"
    problem = Problem(f"{name}={style} is not how a layer can be split", allowed)
    fixed = tuple(f"{n or '*'}={STYLES.get(s, STYLES[near])}" for n, s in pairs)
    raise InvalidValueError(problem, fixed)


def _style_name(style: object) -> str:
    return style if isinstance(style, str) else type(style).__name__


def with_plan(options: RunOptions, namespace: Mapping[str, Any]) -> RunOptions:
    """Return options with the plan that ``--tp-plan`` names as a variable of the notebook.

    Raises:
        OptionError: there is no such dict.
    """
    plan = options.tp_plan
    if not plan or "=" in plan[0]:
        return options
    value = namespace.get(plan[0])
    if not isinstance(value, Mapping):
        what = f"--tp-plan {plan[0]}: " + (
            f"it is a {type(value).__name__}" if plan[0] in namespace else "no such variable"
        )
        allowed = 'A dict such as {"layers.*.fc1": "colwise", "layers.*.fc2": "rowwise"}'
        raise OptionError(format_message(what, allowed, "%%mgpu --strategy tp"))
    return dataclasses.replace(options, tp_plan=validate_tp_plan_of(value))


def validate_tp_plan_of(plan: Mapping[Any, Any]) -> tuple[str, ...]:
    """Return the words of a dict in the notebook.

    Raises:
        OptionError: a style is unknown.
    """
    try:
        return validate_tp_plan(plan)
    except InvalidValueError as error:
        problem = error.problem
        instead = "--tp-plan " + ",".join(map(str, list_of(error.suggestion)))
        raise OptionError(format_message(problem.what, problem.allowed, instead)) from None
