"""What only the whole of a cell can tell: said when it is over."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from nbmgpu.rank.batch_dependence import SPLIT_BY_COUNT
from nbmgpu.rank.metrics.memory import MemoryUsage
from nbmgpu.rank.session import Session
from nbmgpu.rank.source_analysis.notebook_code import NotebookCode
from nbmgpu.runs.events import EventWriter, Measured, Walked
from nbmgpu.strategies.replication import digest, bit_checksums

from . import notices


def tell_what_was_measured(
    events: EventWriter, session: Session, memory_usage: MemoryUsage
) -> None:
    """Tell what the steps of a comparison's run have taken."""
    events.emit(
        Measured,
        steps=session.budget.taken,
        seconds=session.stopwatch.seconds(),
        samples=session.stopwatch.samples(),
        held=memory_usage.tensor_bytes(),
        memory=memory_usage.peak(),
        gpu_memory=memory_usage.gpu_peak(),
    )


def tell_the_whole(
    events: EventWriter, session: Session, cell: str, namespace: Mapping[str, Any]
) -> None:
    """Tell what is known now that ``cell`` has run to its end in ``namespace``."""
    if session.budget.on:
        session.recorder.notice("steps", session.budget.words)
    if session.distributes and session.backwards:
        _tell_the_walk(events, session)
    _give_notices(session, cell, namespace)


def _tell_the_walk(events: EventWriter, session: Session) -> None:
    """Tell what must be alike on all ranks: batches, how losses reduce, replicated weights."""
    batches, losses = session.walk.hexdigest(), session.reductions.hexdigest()
    known = losses if session.losses_known else ""
    weights, buffers = "", {}
    if session.split_passes:
        with suppress(RuntimeError):  # no memory: what is only told must not cost results
            weights, buffers = digest(session.strategy.replicated_parameters()), _buffers(session)
    events.emit(
        Walked,
        passes=session.backwards,
        batches=batches,
        losses=known,
        weights=weights,
        buffers=buffers,
    )


def _buffers(session: Session) -> dict[str, str]:
    """Return a digest of each buffer of what was trained, without those that states leave out."""
    roots = [root for unit in session.units for root in unit.modules]
    found = [
        (".".join(filter(None, (type(root).__name__, path, name))), buffer)
        for root in roots
        for path, module in root.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    ]
    told: dict[str, str] = {}
    for (name, _), bits in zip(found, bit_checksums([b for _, b in found]), strict=True):
        told[name] = told.get(name, "") + bits.hex()  # several models may be of one class
    return told


def _give_notices(session: Session, cell: str, namespace: Mapping[str, Any]) -> None:
    """Give the notices that wait for the end of the cell."""
    recorder = session.recorder
    if session.worked_alone():
        recorder.notice("not-sharded", notices.NOT_SHARDED)
    if session.split_in_vain():
        recorder.notice("not-trained", notices.NOT_TRAINED)
    if session.rank:
        return  # rank 0 has the largest shares: one of another size would have told
    code = NotebookCode.from_cell(cell, namespace)
    text = session.chances.notice_text(code)
    if text and not recorder.has_said("late-count"):
        recorder.notice("by-chance", text)
    if (
        session.batch_dependence.splits_batches
        and not NotebookCode.without_models(cell, namespace).names & SPLIT_BY_COUNT
    ):
        recorder.notice("in-pieces", notices.IN_PIECES)
    if session.own_gradients and code.reads_gradients:
        recorder.notice("own-gradient", notices.OWN_GRADIENT)
    if session.chances.has_penalty_by_size(code):
        recorder.notice("scaled-penalty", notices.SCALED_PENALTY)
