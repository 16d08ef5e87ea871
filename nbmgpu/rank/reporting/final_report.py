"""Measurements and notices that are reported once, after the cell has finished."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from nbmgpu.rank.batch_dependence import SPLIT_BY_COUNT
from nbmgpu.rank.metrics.memory import MemoryUsage
from nbmgpu.rank.session import Session
from nbmgpu.rank.source_analysis.notebook_code import NotebookCode
from nbmgpu.runs.events import EventWriter, Measurements, StepDigest
from nbmgpu.strategies.replication import bit_checksums, digest

from . import notices


def emit_measurements(events: EventWriter, session: Session, memory_usage: MemoryUsage) -> None:
    """Emit the time and memory that the steps of a comparison's run have taken."""
    events.emit(
        Measurements,
        steps=session.budget.taken,
        seconds=session.stopwatch.seconds(),
        samples=session.stopwatch.samples(),
        held=memory_usage.tensor_bytes(),
        memory=memory_usage.peak(),
        gpu_memory=memory_usage.gpu_peak(),
    )


def emit_final_report(
    events: EventWriter, session: Session, cell: str, namespace: Mapping[str, Any]
) -> None:
    """Emit the digests and notices of ``cell``, which has finished in ``namespace``."""
    if session.budget.on:
        session.recorder.notice("steps", session.budget.words)
    if session.distributes and session.backwards:
        _emit_step_digest(events, session)
    _emit_notices(session, cell, namespace)


def _emit_step_digest(events: EventWriter, session: Session) -> None:
    """Emit digests of what must be equal on all ranks.

    These are the batches, how losses reduce, and replicated weights and buffers.
    """
    batches, losses = session.walk.hexdigest(), session.reductions.hexdigest()
    known = losses if session.losses_known else ""
    weights, buffers = "", {}
    if session.split_passes:
        with suppress(RuntimeError):  # out of memory: a digest must not cost the results
            weights, buffers = digest(session.strategy.replicated_parameters()), _buffers(session)
    events.emit(
        StepDigest,
        passes=session.backwards,
        batches=batches,
        losses=known,
        weights=weights,
        buffers=buffers,
    )


def _buffers(session: Session) -> dict[str, str]:
    """Return a digest of each persistent buffer of the trained modules."""
    roots = [root for unit in session.units for root in unit.modules]
    found = [
        (".".join(filter(None, (type(root).__name__, path, name))), buffer)
        for root in roots
        for path, module in root.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    ]
    digests: dict[str, str] = {}
    for (name, _), bits in zip(found, bit_checksums([b for _, b in found]), strict=True):
        digests[name] = digests.get(name, "") + bits.hex()  # models may have the same class
    return digests


def _emit_notices(session: Session, cell: str, namespace: Mapping[str, Any]) -> None:
    """Emit the notices that depend on the whole cell."""
    recorder = session.recorder
    if session.worked_alone():
        recorder.notice("not-sharded", notices.NOT_SHARDED)
    if session.split_in_vain():
        recorder.notice("not-trained", notices.NOT_TRAINED)
    if session.rank:
        return  # rank 0 has the largest shards: another size would have been reported
    code = NotebookCode.from_cell(cell, namespace)
    text = session.chances.notice_text(code)
    if text and not recorder.has_notice("late-count"):
        recorder.notice("by-chance", text)
    if (
        session.batch_dependence.splits_batches
        and not NotebookCode.without_models(cell, namespace).names & SPLIT_BY_COUNT
    ):
        recorder.notice("in-pieces", notices.CHUNKED_BATCH)
    if session.own_gradients and code.reads_gradients:
        recorder.notice("own-gradient", notices.LOCAL_GRADIENT)
    if session.chances.has_penalty_by_size(code):
        recorder.notice("scaled-penalty", notices.SCALED_PENALTY)
