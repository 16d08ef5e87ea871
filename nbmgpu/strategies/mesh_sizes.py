"""The sizes of a device mesh, from ``--mesh`` and the number of ranks; readable without torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from nbmgpu.errors import OptionError, format_message

if TYPE_CHECKING:
    from .profile import Profile
    from .strategy_options import StrategyOptions


DP = "dp"
"""Name of the dimension along which ranks hold the same model and different samples."""

FSDP = "fsdp"
"""Name of the dimension along which ranks shard the model and hold different samples."""

SAMPLES = "samples"
"""Name of the dimension under ``--exact always``: ranks load the same batch, and divide it."""

ALIASES = {
    "dp_replicate": DP, "data_parallel": DP, "dp_shard": FSDP, "tensor_parallel": "tp",
    "pipeline_parallel": "pp", "sequence_parallel": "sp", "context_parallel": "cp",
    "ddp": DP, "data": DP, "tensor": "tp", "pipe": "pp", "pipeline": "pp", "sequence": "sp",
    "context": "cp",
}  # fmt: skip
"""Names of dimensions in torchtitan, Lightning's ModelParallelStrategy and accelerate's
ParallelismConfig, whose fields have ``_size`` at the end as well; and words for them."""

DIMENSIONS = (DP, FSDP, "tp", "pp", "sp", "cp")
"""Names of all dimensions that ``--mesh`` takes."""

DATA_PARALLEL = (DP, FSDP)
"""Names of the data-parallel dimensions; every mesh has at least one."""


def data_parallel_sizes(shape: Mapping[str, int]) -> dict[str, int]:
    """Return the data-parallel dimensions among those of a mesh."""
    return {name: size for name, size in shape.items() if name in DATA_PARALLEL}


def dimension(name: str) -> str:
    """Return the name of a dimension that may be given as other tools call it."""
    plain = name.removesuffix("_size")
    return ALIASES.get(plain, plain)


def parse_mesh(words: Iterable[str]) -> dict[str, int]:
    """Return sizes by dimension of words such as ``dp=2``."""
    pairs = (word.split("=") for word in words)
    return {name: int(size) for name, size in pairs}


def format_mesh(sizes: dict[str, int]) -> str:
    """Return the mesh as ``--mesh`` takes it: ``dp=2,tp=2``."""
    return ",".join(f"{name}={size}" for name, size in sizes.items())


def describe_position(sizes: dict[str, int], rank: int) -> str:
    """Return where a rank is in a mesh (``dp 1 tp 0``); empty if no dimension has two ranks."""
    places = position(sizes, rank).items()
    return " ".join(f"{name} {index}" for name, index in places if sizes[name] > 1)


def describe_positions(sizes: dict[str, int]) -> list[str]:
    """Return where each rank is, if a dimension has two: ``rank 1 at dp 0 tp 1``."""
    ranks = range(math.prod(sizes.values()))
    places = [describe_position(sizes, rank) for rank in ranks]
    return [f"rank {rank} at {place}" for rank, place in zip(ranks, places, strict=True) if place]


def position(sizes: dict[str, int], rank: int) -> dict[str, int]:
    """Return the coordinates of a rank in a mesh, whose last dimension varies fastest."""
    found: dict[str, int] = {}
    for name, size in reversed(sizes.items()):
        rank, found[name] = divmod(rank, size)
    return dict(reversed(found.items()))


def mesh_ranks(options: StrategyOptions) -> int | None:
    """Return the number of ranks that ``--mesh`` asks for; None without it."""
    return math.prod(parse_mesh(options.mesh).values()) if options.mesh else None


def mesh_sizes(profile: Profile, world_size: int, options: StrategyOptions) -> dict[str, int]:
    """Return the sizes of all dimensions of a run's mesh, outermost first.

    They are those of the strategy, except under ``--exact always``, where all ranks have the same
    batch.

    Raises:
        OptionError: as ``strategy_sizes``.
    """
    sizes = strategy_sizes(profile, world_size, options)
    return {DP: 1, SAMPLES: world_size} if options.exact == "always" else sizes


def strategy_sizes(profile: Profile, world_size: int, options: StrategyOptions) -> dict[str, int]:
    """Return the sizes of all dimensions of a strategy's mesh, outermost first.

    Without ``--mesh``, each of the profile's default sizes holds where it leaves more than one rank
    for the last dimension, which has all other ranks.

    Raises:
        OptionError: the strategy has no such dimension, or the sizes do not multiply to
            ``world_size``.
    """
    names = profile.mesh
    given = parse_mesh(options.mesh)
    if not given:
        sizes, left = dict.fromkeys(names, 1), world_size
        for name, size in profile.default_mesh.items():
            if left > size and left % size == 0:
                sizes[name], left = size, left // size
        return sizes | {names[-1]: left}
    unknown = [name for name in given if name not in names]
    sizes = {name: given.get(name, 1) for name in names}
    if not unknown and math.prod(sizes.values()) == world_size:
        return sizes
    if unknown:
        what = f"The mesh of {profile.name} has no dimension {unknown[0]!r}"
        allowed = f"Its dimensions are {', '.join(names)}"
    else:
        product = math.prod(sizes.values())
        what = f"--mesh {format_mesh(given)} has {product} ranks, and the run has {world_size}"
        allowed = "The sizes of a mesh multiply to the number of ranks"
    nearest = format_mesh(_nearest(sizes, world_size))
    raise OptionError(
        format_message(what, allowed, f"%%mgpu --strategy {profile.name} --mesh {nearest}")
    )


def _nearest(sizes: dict[str, int], world_size: int) -> dict[str, int]:
    """Return sizes with the product ``world_size`` that keep as many of ``sizes`` as possible."""
    for changed in sizes:
        others = math.prod(size for name, size in sizes.items() if name != changed)
        if world_size % others == 0:
            return sizes | {changed: world_size // others}
    last = list(sizes)[-1]
    return {name: world_size if name == last else 1 for name in sizes}
