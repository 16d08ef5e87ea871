"""Requests to export a cell that is about to run, or one that has run."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbmgpu.environment import random_state
from nbmgpu.environment.headers import BundleHeader
from nbmgpu.errors import CellError, LaunchError, OptionError, SerializationError, format_message
from nbmgpu.options.run_options import RunOptions
from nbmgpu.runs.folder import CELLS_FILE, START_FILE
from nbmgpu.runs.run import Run
from nbmgpu.serialization import serialize
from nbmgpu.serialization.bundle import write_container
from nbmgpu.serialization.reopened_bundle import reopen_bundle
from nbmgpu.system.ownership import require_own
from nbmgpu.trackers.base import NotebookTrackers

from .cell_code import read_cell_code
from .definitions import DefinitionSearch
from .request import ExportRequest
from .statements import read_statements


@dataclass(frozen=True)
class Surroundings:
    """The notebook around a cell.

    Attributes:
        namespace: its names.
        cells: sources of its earlier cells, in order of execution.
        transform: turns magics and shell lines into Python.
        notebook: its path, or an empty string.
    """

    namespace: dict[str, Any]
    cells: Sequence[str] = ()
    transform: Callable[[str], str] | None = None
    notebook: str = ""


def request_of_cell(
    cell: str, options: RunOptions, devices: Sequence[str], nodes: int, notebook: Surroundings
) -> ExportRequest:
    """Return the request to export a cell that has not run yet."""
    name = Path(notebook.notebook).name
    return ExportRequest(
        cell=cell,
        options=options,
        devices=tuple(devices),
        values=notebook.namespace,
        cells=tuple(notebook.cells),
        transform=notebook.transform or _transform(),
        at_start=True,
        random=random_state.capture(),
        origin=f"a cell of {name}" if name else "a cell of a notebook",
        nodes=nodes,
    )


def request_of_run(run: Run, changes: Mapping[str, Any], notebook: Surroundings) -> ExportRequest:
    """Return the request to export the cell of ``run``.

    Args:
        run: a run, which may be over.
        changes: options that replace those of the run, by field.
        notebook: of this process.

    Raises:
        OptionError: the run has not kept its start, and is not one of this process.
        OwnershipError: another user may have written what the run has kept.
    """
    options = dataclasses.replace(RunOptions(**run.record.options.values), **changes)
    name = Path(run.record.kernel.notebook).name
    origin = f"run {run.id}" + (f" of {name}" if name else "")
    devices = _devices(run.record.devices, options.gpus if "gpus" in changes else None)
    start = run.folder / START_FILE
    restarted = "" if "exact" in changes else _reason_of_whole_batches(run)
    common: dict[str, Any] = {
        "cell": run.cell, "options": options, "devices": devices, "origin": origin,
        "nodes": run.record.nodes, "transform": notebook.transform or _transform(),
        "restarted": restarted,
    }  # fmt: skip
    if start.exists():
        require_own(start.parent)
        require_own(start)
        values: dict[str, Any] = {"__name__": "__main__"}
        bundle = reopen_bundle(str(start), run.id, values)
        cells = tuple(json.loads((run.folder / CELLS_FILE).read_text(encoding="utf-8")))
        state = bundle.header.random
        return ExportRequest(values=values, cells=cells, at_start=True, random=state, **common)
    if not run.record.kernel.is_this_process:
        what = f"Run {run.id} has not kept what its cell started from, and is of another kernel"
        instead = "%%mgpu --keep-start for later exports, or --export train.py above the cell"
        raise OptionError(format_message(what, instead=instead))
    cells = tuple(_before(notebook.cells, run.cell))
    return ExportRequest(values=notebook.namespace, cells=cells, at_start=False, **common)


def keep_start(run: Run, cell: str, reads: Sequence[str], notebook: Surroundings) -> None:
    """Keep in the folder of ``run`` what its cell starts from.

    Args:
        run: which is about to start.
        cell: its source.
        reads: the names that it reads.
        notebook: of this process.

    Raises:
        LaunchError: the folder cannot be written.
    """
    header = BundleHeader(random_state.capture(), {}, {}, NotebookTrackers())
    names = {*reads, *_names_of_definitions(cell, notebook)} & notebook.namespace.keys()
    values = {name: notebook.namespace[name] for name in sorted(names)}
    try:
        bundle = serialize(values, notebook.namespace, header)
    except SerializationError:  # of a name that only a definition reads
        values = {name: notebook.namespace[name] for name in reads}
        bundle = serialize(values, notebook.namespace, header)
    try:
        text = json.dumps(list(notebook.cells))
        (run.folder / CELLS_FILE).write_text(text, encoding="utf-8")
        path = run.folder / START_FILE
        path.touch(mode=0o600)
        write_container(str(path), bundle.stream, bundle.table, bundle.buffers, None, run.id)
    except OSError as error:
        with suppress(OSError):
            shutil.rmtree(run.folder)
        what = f"--keep-start cannot write what the cell starts from: {error}"
        raise LaunchError(format_message(what, instead="the cell without --keep-start")) from error
    finally:
        bundle.release()


def _names_of_definitions(cell: str, notebook: Surroundings) -> set[str]:
    """Return the names that an export of ``cell`` defines, or no name if it cannot be exported."""
    transform = notebook.transform or _transform()
    try:
        code = read_cell_code(cell, transform)
        statements = read_statements(notebook.cells, transform)
        search = DefinitionSearch(statements, notebook.namespace, at_start=True)
        found = search.find(code.reads, code.own)
    except (CellError, SyntaxError):
        return set()
    return {name for item in found.items for name in item.binds}


def _before(cells: Sequence[str], cell: str) -> Sequence[str]:
    """Return the cells that were executed before ``cell``, all if it is not found."""
    body = re.sub(r"\A\s*# %%mgpu.*\n", "", cell).strip()
    for place in reversed(range(len(cells))):
        if (body and repr(body)[1:-1] in cells[place]) or body in cells[place]:
            return cells[:place]
    return cells


def _reason_of_whole_batches(run: Run) -> str:
    """Return why ``run`` started again with whole batches, or nothing: its notice begins so."""
    run.refresh()
    notice = run.view.notices.get("restarted")
    reason, _, rest = notice.text.partition(". After ") if notice else ("", "", "")
    return reason if "has started again with whole batches" in rest else ""


def _devices(devices: Sequence[str], count: object) -> tuple[str, ...]:
    """Return the devices of ranks, of which there may be another number than in the run."""
    wanted = len(count) if isinstance(count, tuple) else count
    if not isinstance(wanted, int):
        return tuple(devices)
    on_gpu = devices[0] != "cpu"
    return tuple(f"cuda:{rank}" if on_gpu else "cpu" for rank in range(wanted))


def _transform() -> Callable[[str], str]:
    from IPython.core.inputtransformer2 import TransformerManager

    return TransformerManager().transform_cell
