"""``advise``, and the list of strategies without a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmgpu.devices.probe import Machine
from nbmgpu.options.run_options import RunOptions
from nbmgpu.options.values import GpuRequest
from nbmgpu.runs.engine_plugins import DEFAULT_ENGINE
from nbmgpu.strategies import profile_of

from .advice import Advice, Estimate, Fit
from .available_memory import memory_of_nodes, probe_memory
from .estimates import magic_line
from .model_advisor import ModelAdvisor
from .node_traffic import parse_link
from .request import AdviceRequest
from .row_kinds import RowKind, row_kinds
from .speed_model import Speed

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

    from nbmgpu.strategies.strategy_options import Precision


def advise(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    batch: Any = None,
    *,
    loader: DataLoader[Any] | None = None,
    gpus: GpuRequest = None,
    precision: Precision | None = None,
    accumulate: int = 1,
    checkpointing: bool = False,
    memory: float | str | None = None,
    engine: str = DEFAULT_ENGINE,
    nodes: int | None = None,
    link: float | str | None = None,
) -> Advice:
    """Recommend a strategy for training ``model``, with the reason.

    Nothing is run and the model does not change.  It may be on the ``meta`` device, so that
    models of any size can be advised on.

    Args:
        model: the model to train.
        optimizer: its optimizer; Adam is assumed if not given.
        batch: a global batch of the DataLoader; or ``(samples, tokens)`` for a language model;
            or the DataLoader.  Activations are estimated from it.
        loader: the DataLoader, instead of a batch.
        gpus: number or indices of the GPUs, as in ``--gpus``.
        precision: as in ``--precision``.
        accumulate: as in ``--accumulate``.
        checkpointing: whether activations are recomputed.
        memory: free memory of each of ``gpus`` GPUs (``"80 GB"``), to ask about another machine.
        engine: as in ``--engine``.
        nodes: as in ``--nodes``; ``gpus`` is then the number on each.
        link: what a node sends to others, in Gbit/s; without it, the link counts as slow.

    Returns:
        The recommendation and an estimate for each strategy; a notebook shows it as a table.

    Raises:
        OptionError: an argument has an invalid value, or there are too few devices.
    """
    base = RunOptions.of(engine=engine, nodes=nodes)
    request = AdviceRequest(
        gpus, precision, accumulate, checkpointing,
        engine=base.engine, nodes=base.nodes, memory=memory,
        link=None if link is None else parse_link(link), base=base,
    )  # fmt: skip
    return ModelAdvisor(model, optimizer, batch, loader).advise(request)


def catalogue(request: AdviceRequest, machine: Machine | None = None) -> Advice:
    """Return all strategies without estimates, for when no model is known.  Needs no torch."""
    options = request.run_options()
    if request.is_elsewhere:
        available = memory_of_nodes(options, request.memory, machine)
    else:
        available = probe_memory(options, machine)
    speed = Speed(None, None, "unknown", "depends on the model")
    rows = []
    base = request.base or RunOptions()
    for kind in row_kinds(available.ranks, False, base, nodes=available.nodes):
        profile = profile_of(kind.strategy)
        line, problem = magic_line(kind, request, available, available.ranks)
        fits: Fit = "unknown" if line else "no"
        estimate = Estimate(
            kind.name, profile.summary, (), 0, 0, fits, problem, speed, profile.costs, "", line
        )
        rows.append(estimate)
    return Advice(
        model="",
        devices=available.description,
        ranks=available.ranks,
        free=available.free,
        rows=tuple(rows),
        recommended="ddp",
        reason="No model is known yet: start with ddp, the simplest strategy.",
        line=magic_line(RowKind("ddp", "ddp"), request, available, available.ranks)[0],
        largest_batch=None,
        notes=available.notes,
    )
