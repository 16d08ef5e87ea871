"""Strategies: how the ranks of a run divide the work of training.

A strategy is found by name through the entry point group ``nbmgpu.strategies``, so other packages
can add their own.  Strategies know modules, optimizers and process groups, and nothing of
notebooks, files or widgets.

- ``profile``, ``profiles``: names, requirements and costs; ``strategy_options``: the options;
  ``option_support``: which of them a strategy supports.
- ``base``: the interface; ``mesh``: the device mesh, and which dimensions are data parallel;
  ``mesh_sizes``: its sizes from ``--mesh``.
- ``ddp``, ``zero1``, ``dp``, ``none``; ``fsdp/`` (also ``hsdp``, ``zero2``, ``fsdp+tp``), ``tp/``,
  ``pp/`` (also ``tp+pp``, ``fsdp+pp``, ``fsdp+tp+pp``), ``sp/`` (also ``cp``), ``mp/`` and
  ``deepspeed/``.
- ``collectives``: of CPU ranks on one machine through ``shared_memory/``.
- Gradients: ``unit_reducers`` has a ``reducer`` per unit, which averages ``buckets``, with
  ``reduction_extras`` in the last one; ``used_parameters`` finds which gradients are new,
  ``gradient_views`` makes them views; ``scalars`` are weights that may be on a GPU.
- ``replication``: initial values and running statistics; ``trainable``: what is trained now.
- ``sharding/``: sharded parameters that look like full tensors; ``sharded_state``: sharded
  optimizer states; ``per_parameter``: can an optimizer be sharded?
- ``forward_patch``: wrappers around the forward pass of chosen modules.
- Trials of layers: ``module_copy``, ``checkpoint``, ``outcome``, ``graph_leaves``, ``rnn_weights``,
  ``recorded_outputs``, ``caching_configs``; with other numbers: ``trial_factors``,
  ``tensor_reads``, ``host_checks``.
- ``repeated_blocks``: blocks for checkpointing; ``collective_pickle``: saving sharded objects.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbmgpu.errors import OptionError, closest_match, format_message
from nbmgpu.system.plugins import entry_points_in

from .mesh_sizes import DATA_PARALLEL, mesh_sizes, parse_mesh
from .option_support import OptionSupport
from .profile import Profile, Requirements
from .profiles import BUILT_IN
from .strategy_options import StrategyOptions

if TYPE_CHECKING:
    from .base import Strategy

__all__ = [
    "OptionSupport",
    "Profile",
    "Requirements",
    "StrategyOptions",
    "canonical",
    "data_parallel_size",
    "has_dimensions",
    "load_strategy",
    "profile_of",
    "strategy_for",
    "strategy_names",
    "with_mesh",
]

GROUP = "nbmgpu.strategies"


@functools.cache
def strategy_names() -> tuple[str, ...]:
    """Return the names that ``--strategy`` accepts, without aliases; built-in ones first."""
    found = entry_points_in(GROUP)
    return (*(n for n in BUILT_IN if n in found), *sorted(found.keys() - BUILT_IN.keys()))


@functools.cache
def _aliases() -> dict[str, str]:
    known = strategy_names()
    return {alias: p.name for p in BUILT_IN.values() if p.name in known for alias in p.aliases}


def canonical(name: str) -> str | None:
    """Return the name of the strategy with ``name`` or such an alias, in any spelling, or None.

    ``FSDP2``, ``zero-3`` and ``deepspeed_stage_3`` are all names that some tool uses.
    """
    found = _find_name(name)
    if found is None and _read_again():
        found = _find_name(name)
    return found


def _find_name(name: str) -> str | None:
    if name in strategy_names():
        return name
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    if plain in strategy_names():
        return plain
    parts = [_find_name(part) for part in plain.split("+")] if "+" in plain else []
    combined = (n for n in strategy_names() if parts and {*n.split("+")} == {*parts})
    return _aliases().get(plain) or next(combined, None)


def has_dimensions(name: str, mesh: Sequence[str]) -> bool:
    """Whether the mesh of a built-in strategy has all dimensions of ``mesh`` with several ranks."""
    return _dimensions(mesh) <= {*BUILT_IN[name].mesh}


def _dimensions(mesh: Sequence[str]) -> set[str]:
    return {dim for dim, size in parse_mesh(mesh).items() if size > 1}


def with_mesh(name: str | None, mesh: Sequence[str]) -> str | None:
    """Return the strategy for a mesh: ``tp`` with the dimension ``fsdp`` is ``fsdp+tp``.

    Args:
        name: the strategy that the user named; None for any.
        mesh: words such as ``fsdp=2``.

    Returns:
        The strategy with the fewest dimensions that has all of the mesh; ``name`` if there is none.
    """
    needed = _dimensions(mesh)
    if needed <= {"dp"} or (name and (name not in BUILT_IN or has_dimensions(name, mesh))):
        return name
    part = "fsdp" if name == "hsdp" else name
    fitting = [
        p
        for p in BUILT_IN.values()
        if has_dimensions(p.name, mesh)
        and (part is None or {*part.split("+")} <= {*p.name.split("+")})
    ]
    order = [(len(p.mesh), p.name not in needed, p.name) for p in fitting]
    return min(order)[-1] if order else name


def _read_again() -> bool:
    """Read entry points again; return whether any has been installed since they were read."""
    before = entry_points_in(GROUP)
    for cached in (entry_points_in, strategy_names, _aliases):
        cached.cache_clear()
    return entry_points_in(GROUP) != before


def nearest(name: str) -> str:
    """Return the name of the strategy most similar to an unknown name."""
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    if plain == "auto":
        return "ddp"
    names = [
        n for n in (*strategy_names(), *_aliases()) if n not in ("dp", "pp", "mp", "2d", "3d")
    ]  # "dpp": ddp
    closest = closest_match(plain, names)
    return (canonical(closest) if closest else None) or "ddp"


def profile_of(name: str) -> Profile:
    """Return the profile of the strategy ``name``, without importing a built-in strategy.

    Raises:
        OptionError: there is no such strategy.
    """
    return BUILT_IN[name] if name in BUILT_IN else load_strategy(name).profile


def strategy_for(name: str, options: StrategyOptions) -> type[Strategy]:
    """Import and return the class of the strategy ``name`` that has these options.

    Raises:
        OptionError: there is no such strategy.
    """
    if options.exact == "always":
        from .exact import with_whole_batches

        return with_whole_batches(load_strategy(name))
    return load_strategy(name)


def load_strategy(name: str) -> type[Strategy]:
    """Import and return the strategy ``name``.

    Raises:
        OptionError: there is no such strategy.
    """
    found = entry_points_in(GROUP).get(name)
    if found is None and _read_again():  # a fork server read them before it was installed
        found = entry_points_in(GROUP).get(name)
    if found is None:
        names = strategy_names()
        raise OptionError(
            format_message(
                f"There is no strategy {name!r}",
                f"Strategies: {', '.join(names)}",
                f"%%mgpu --strategy {nearest(name)}",
            )
        )
    strategy: type[Strategy] = found.load()
    return strategy


def data_parallel_size(name: str, world_size: int, options: StrategyOptions) -> int:
    """Return the number of shards that the strategy ``name`` splits a global batch into.

    This imports strategies of other packages only.
    """
    if name in BUILT_IN:
        sizes = mesh_sizes(BUILT_IN[name], world_size, options)
    else:
        sizes = load_strategy(name).mesh_shape(world_size, options)
    return math.prod(size for dim, size in sizes.items() if dim in DATA_PARALLEL)
