"""Exports of a cell from the kernel that it belongs to (``--export``, ``--keep-start``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nbmgpu.exports.run_request import Surroundings, keep_start, request_of_cell
from nbmgpu.exports.writing import ExportedScript, write_script

if TYPE_CHECKING:
    from .execution import Execution


def export_cell(execution: Execution) -> ExportedScript:
    """Write the cell of a prepared execution, which is not started, as a script.

    Raises:
        OptionError, CellError, StrategyError: it cannot be exported.
        OSError: a file cannot be written.
    """
    path, placement = execution.options.export, execution.placement
    assert path is not None
    try:
        request = request_of_cell(
            execution.source,
            execution.options,
            placement.devices,
            placement.nodes,
            _surroundings(execution),
        )
        return write_script(request, Path(path))
    finally:
        execution.bundle.release()


def keep_start_of(execution: Execution) -> None:
    """Keep in the run folder what the cell starts from.

    Raises:
        LaunchError: the folder cannot be written.
    """
    reads = execution.cell.reads
    keep_start(execution.run, execution.source, reads, _surroundings(execution))


def _surroundings(execution: Execution) -> Surroundings:
    context = execution.context
    return Surroundings(execution.namespace, context.cells, context.transform, context.notebook)
