"""The rows of an ``Advice``: each strategy, and some with options that change what they need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nbmgpu.errors import OptionError
from nbmgpu.strategies import profile_of, strategy_names
from nbmgpu.strategies.mesh_sizes import DP, mesh_sizes
from nbmgpu.strategies.strategy_options import StrategyOptions

MODEL_PARALLEL = ("tp", "pp", "sp")
"""Strategies with a row for two replicas, which need fewer fast links than one group."""

REPLICAS = 2

SLICED = "tp --sequence-parallel"
"""Row of ``tp`` with activations between split layers on slices of the sequence."""


@dataclass(frozen=True, eq=False)
class RowKind:
    """A strategy with the options that make a row of its own.

    Attributes:
        name: the strategy and these options, as on a ``%%mgpu`` line.
        strategy: name of the strategy.
        options: the options by their names in ``RunOptions``.
    """

    name: str
    strategy: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def mesh(self, ranks: int, on_gpu: bool, options: StrategyOptions) -> dict[str, int]:
        """Return the sizes of its mesh; those of the default mesh if ``options`` do not fit."""
        if self.strategy == "mp":  # it is one process, which has the whole batch
            return {"mp": ranks if on_gpu else 1}
        profile = profile_of(self.strategy)
        words = self.options.get("mesh", options.mesh)
        try:
            return mesh_sizes(profile, ranks, StrategyOptions(mesh=words))
        except OptionError:
            return mesh_sizes(profile, ranks, StrategyOptions())

    def options_of_parts(self, options: StrategyOptions) -> StrategyOptions:
        """Return the options of the cell's line, and of this row, that change what a rank has."""
        return StrategyOptions(
            schedule=options.schedule,
            split_points=options.split_points,
            balance=options.balance,
            tp_plan=options.tp_plan,
            sequence_parallel=self.options.get("sequence_parallel", options.sequence_parallel),
        )


def row_kinds(
    ranks: int, on_gpu: bool, options: StrategyOptions, samples: int = 0, nodes: int = 1
) -> Iterator[RowKind]:
    """Yield the rows for a number of ranks.

    On several nodes, meshes keep what needs a fast link inside of a node: see ``NODE_MESHES``.

    Args:
        ranks: number of ranks.
        on_gpu: whether each rank has a GPU.
        options: options of the cell's line; with a mesh there, no other is proposed.
        samples: size of a batch, of which each replica needs a sample; 0 if unknown.
        nodes: number of machines that the ranks are on.
    """
    on_nodes = {} if options.mesh else _node_meshes(ranks // nodes, nodes)
    for strategy in strategy_names():
        if strategy in on_nodes and strategy not in MODEL_PARALLEL:
            yield _with_mesh(strategy, on_nodes[strategy])
            continue
        if not _has_dimensions(strategy, ranks):
            continue
        yield RowKind(strategy, strategy)
        if strategy == "tp" and not options.sequence_parallel:
            yield RowKind(SLICED, strategy, {"sequence_parallel": True})
        if strategy == "fsdp" and on_gpu:
            yield RowKind("fsdp --cpu-offload", strategy, {"cpu_offload": True})
        if strategy in on_nodes:
            if samples == 0 or samples >= nodes:
                yield _with_mesh(strategy, on_nodes[strategy])
        elif strategy in MODEL_PARALLEL and not options.mesh and _has_groups(ranks, samples):
            yield _with_mesh(strategy, (f"dp={REPLICAS}", f"{strategy}={ranks // REPLICAS}"))


NODE_MESHES = {
    "hsdp": "dp={nodes},fsdp={ranks}",
    "tp": "dp={nodes},tp={ranks}",
    "pp": "dp={nodes},pp={ranks}",
    "sp": "dp={nodes},sp={ranks}",
    "fsdp+tp": "fsdp={nodes},tp={ranks}",
    "tp+pp": "pp={nodes},tp={ranks}",
    "fsdp+pp": "pp={nodes},fsdp={ranks}",
}
"""Meshes on several nodes: the last dimension is inside of a node, the first between nodes."""


def _node_meshes(ranks: int, nodes: int) -> dict[str, tuple[str, ...]]:
    """Return the mesh of each strategy that has one for ``nodes`` with ``ranks`` each."""
    if nodes == 1 or ranks == 1:
        return {}
    meshes = dict(NODE_MESHES)
    if ranks >= 4 and ranks % 2 == 0:
        meshes["fsdp+tp+pp"] = f"pp={{nodes}},fsdp={ranks // 2},tp=2"
    return {
        name: tuple(mesh.format(nodes=nodes, ranks=ranks).split(","))
        for name, mesh in meshes.items()
    }


def _with_mesh(strategy: str, mesh: tuple[str, ...]) -> RowKind:
    return RowKind(f"{strategy} --mesh {','.join(mesh)}", strategy, {"mesh": mesh})


def _has_dimensions(strategy: str, ranks: int) -> bool:
    """Whether ranks suffice for each dimension of a strategy that combines several.

    With fewer, it is the same as one of those without that dimension.
    """
    profile = profile_of(strategy)
    combined = [name for name in profile.mesh if name != DP]
    sizes = mesh_sizes(profile, ranks, StrategyOptions())
    return len(combined) < 2 or all(sizes[name] > 1 for name in combined)


def _has_groups(ranks: int, samples: int) -> bool:
    return samples != 1 and ranks >= 2 * REPLICAS and ranks % REPLICAS == 0
