"""The Python API: what the magics do, as functions."""

from __future__ import annotations

import functools
import itertools
import keyword
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import OptionError, format_message
from .kernel import executor, held_ranks
from .kernel import release as releasing
from .kernel.execution import Execution
from .kernel.executor import execute, interrupts_of_attach, monitor, take_over, wait_for_results
from .kernel.in_rank import metrics_log, shared_batches
from .kernel.notebook_context import NotebookContext
from .options.flags import RUN
from .options.parsing import reject_unknown
from .options.run_options import RunOptions
from .report.run_comparison import MAX_RUNS, RunComparison, comparison_of
from .runs.run import Run
from .runs.run_list import find_run, iter_runs
from .serialization import VALUE
from .ui.live_output import LiveOutput

if TYPE_CHECKING:
    from torch import Tensor

    from .exports.writing import ExportedScript


@dataclass(frozen=True)
class LaunchResult:
    """The result of ``launch``.

    Attributes:
        value: what the function returned on rank 0.
        per_rank: what it returned on each rank, in rank order; None for large values.
        run: the run, which has finished.
    """

    value: Any
    per_rank: list[Any]
    run: Run


def run(source: str, namespace: dict[str, Any] | None = None, **options: Any) -> Run | None:
    """Run ``source`` on ranks as if it ran in ``namespace``, and wait for it.

    Args:
        source: Python source, which may contain IPython magics and shell lines.
        namespace: where names are read and bound; by default the caller's globals.
        options: those of the magic, with underscores: ``strategy="ddp"``, ``gpus=2``,
            ``batch="global"``, ``seed=0``, ``pull=("model",)``, ``timeout=60`` (seconds), ...
            With ``background=True`` the call returns at once; ``nbmgpu.attach()`` waits for
            the run and writes its results back.

    Returns:
        The run, which has finished, or with ``background=True`` has started; None with
        ``dry_run=True``, which prints the plan and starts nothing, and with ``export=PATH``.

    Raises:
        OptionError: an option is unknown or not available here.
        SyntaxError, UnknownNameError: the source cannot run anywhere.
        StrategyError, SerializationError, LaunchError: the run could not start.
        BaseException: the exception that the source raised on a rank.
        RankError: a rank has ended without raising an exception.
        RunTimeoutError: it took longer than ``timeout``.
        KeyboardInterrupt: it was stopped.
        ResultsError: it ran to its end, and its results are lost.
    """
    if namespace is None:
        namespace = sys._getframe(1).f_globals
    chosen, held = held_ranks.adopt(RunOptions.of(**options))
    execution = Execution(source, namespace, chosen, NotebookContext.current(), held=held)
    return execute(execution, LiveOutput)


def launch(function: Callable[..., Any], *args: Any, **options: Any) -> LaunchResult:
    """Call ``function(*args)`` on every rank; changes to ``args`` are written back.

    Args:
        function: any function, including one defined in the notebook or in ``__main__``.
        args: its positional arguments.
        options: as for ``run``, except ``background``, ``detach``, ``dry_run`` and ``export``.
            All keywords are options; to pass some to the function, use
            ``functools.partial(function, name=1)``.

    Returns:
        What the function returned, on rank 0 and on each rank, and the run, which has finished.

    Raises:
        OptionError: an option is unknown, not available here, or one of those.
        BaseException: see ``run``.
    """
    namespace = function.__globals__ if hasattr(function, "__globals__") else {}
    called, given = _call_names(function, namespace)
    call = {**namespace, called: function, given: args}
    source = f"{called}(*{given})"
    chosen = RunOptions.of(**options)
    if chosen.in_background or chosen.dry_run or chosen.export:
        what = "nbmgpu.launch waits for the function's result"
        raise OptionError(format_message(what, instead="nbmgpu.run(..., background=True)"))
    chosen, held = held_ranks.adopt(chosen)
    execution = Execution(source, call, chosen, NotebookContext.current(), held=held)
    finished = execute(execution, LiveOutput)
    assert finished is not None
    ranks = range(finished.record.world_size)
    per_rank = [finished.results.get(rank, {}).get(VALUE) for rank in ranks]
    return LaunchResult(per_rank[0], per_rank, finished)


def _call_names(function: Callable[..., Any], namespace: Mapping[str, Any]) -> tuple[str, str]:
    """Return names for ``function`` and its arguments that ``namespace`` does not use otherwise.

    The call with these names is the source of the run, so it is what lists of runs show.
    """
    inner = function.func if isinstance(function, functools.partial) else function
    name = getattr(inner, "__name__", "function")
    called = name if name.isidentifier() and not keyword.iskeyword(name) else "function"
    if namespace.get(called, function) is not function:
        called = f"_nbmgpu_{called}"
    return called, "_nbmgpu_args" if "args" in {*namespace, called} else "args"


def attach(name: str = "") -> Run:
    """Show the run whose id begins with ``name``, by default the newest, until it is over.

    Its results are written back if this process has started it, or if its kernel has ended; runs of
    other kernels are only shown.

    Returns:
        The run, which is over.  It has finished if this process has started it; a run of another
        process may also have failed.

    Raises:
        OptionError: there is no such run.
        BaseException: see ``run``, for a run of this process.
    """
    run, execution = take_over(name)
    if execution is None:
        return monitor(run, LiveOutput)
    with interrupts_of_attach(execution):
        return wait_for_results(execution, run, LiveOutput)


def release(discard: bool = False, overwrite: bool = False) -> Run | None:
    """End the ranks that are held since a run with ``hold=True``, and write back what they hold.

    Args:
        discard: whether models and optimizers of the ranks are dropped; the notebook's stay as they
            were before the run.
        overwrite: whether to write back also what the notebook has changed meanwhile, whose changes
            are lost.

    Returns:
        The run that has written them back; None with ``discard``.

    Raises:
        OptionError: no ranks are held, or the notebook has changed what they hold.
        BaseException: see ``run``.
    """
    return releasing.release(LiveOutput, discard, overwrite)


def compare_runs(*runs: str | Run) -> RunComparison:
    """Compare runs side by side: their options, results, curves and cells.

    Args:
        runs: the runs, or the beginnings of their ids, or their names; from 2 to 32.

    Returns:
        What a notebook shows as charts and a table; ``to_frame()`` is the table.

    Raises:
        OptionError: a run does not exist, or their number is another.
    """
    found = list({run.id: run for run in map(_opened, runs)}.values())
    if not 2 <= len(found) <= MAX_RUNS:
        what = f"A comparison needs several runs, not {len(found)}"
        newest = ", ".join(repr(run.id) for run in itertools.islice(iter_runs(), 2))
        instead = f"nbmgpu.compare_runs({newest})"
        raise OptionError(format_message(what, f"From 2 to {MAX_RUNS} different ones", instead))
    for run in found:
        run.refresh()
    return comparison_of(found)


def _opened(run: str | Run) -> Run:
    return find_run(run) if isinstance(run, str) else run


def export(
    run: str | Run = "",
    path: str | Path = "train.py",
    *,
    with_nbmgpu: bool = False,
    report: bool = False,
    **options: Any,
) -> ExportedScript | Path:
    """Write a run as a script for ``torchrun``, which needs no nbmgpu; or as a page of HTML.

    Args:
        run: the run or the beginning of its id, by default this notebook's newest, else the newest.
        path: the file to write, ``train.py`` or ``report.html``.
        with_nbmgpu: whether the script calls ``nbmgpu.run`` instead of torch's own classes.
        report: whether to write a page instead of a script.
        options: those of the script that differ from those of the run: ``strategy="fsdp"``, ...

    Returns:
        The script with the files that it loads and what its numbers depend on; or the page's path.

    Raises:
        OptionError, CellError, StrategyError: the run cannot be exported; see docs/export.md.
        OSError: a file cannot be written.
    """
    from .exports.report_page import write_report
    from .exports.run_request import Surroundings, request_of_run
    from .exports.writing import check_folder, write_script

    path = Path(path).expanduser()
    check_folder(path)
    newest = executor.last_run if not run else None  # of this notebook, if it has one
    found = run if isinstance(run, Run) else newest or find_run(run)
    if report:
        if options or with_nbmgpu:
            given = ", ".join([*options, *(["with_nbmgpu"] if with_nbmgpu else [])])
            what = f"A report shows the run as it was, but {given} would change it"
            raise OptionError(format_message(what, instead="nbmgpu.export(run, path, report=True)"))
        return write_report(found, path)
    reject_unknown(options, RUN)
    context = NotebookContext.current()
    notebook = Surroundings(context.namespace, context.cells, context.transform, context.notebook)
    request = request_of_run(found, options, notebook)
    return write_script(request, path, with_nbmgpu)


def log(**values: Any) -> None:
    """Log metrics as curves of the run: ``nbmgpu.log(acc=0.9)``.

    A value is a number or a tensor with one element.  Values of ranks are averaged, weighted by
    their number of samples.  Outside a run this does nothing, so the line may stay in the cell.

    Raises:
        TypeError: in a run, a value is not a single number.
    """
    if (metrics := metrics_log()) is not None:
        metrics.log(values)


@dataclass(frozen=True)
class SharedBatch:
    """A batch that the ranks divide, to iterate over once: what ``share`` returns.

    Attributes:
        tensors: of the whole batch.
        dim: along which the samples lie.
    """

    tensors: tuple[Tensor, ...]
    dim: int

    def __iter__(self) -> Iterator[Any]:
        """Yield this rank's part: a tensor, or a tuple of several."""
        ranks = shared_batches()
        parts = iter((self.tensors,))
        if ranks is not None:
            parts = ranks.iterate(self.tensors, self.dim, sys._getframe(1))
        return parts if len(self.tensors) > 1 else (part for (part,) in parts)


def share(*tensors: Tensor, dim: int = 0) -> SharedBatch:
    """Divide a batch that the cell makes itself among the ranks.

    For cells without a DataLoader.  The body of the loop is one training step, which may take
    several backward passes::

        for i in range(0, len(X), 64):
            for x, y in nbmgpu.share(X[i : i + 64], Y[i : i + 64]):
                loss = loss_fn(model(x), y)
                ...

    Each rank gets its part of the batch, and gradients are those of the whole batch, as with a
    DataLoader.  Outside of a run, in an evaluation and with ``--exact always``, the loop gets the
    whole batch.

    Args:
        tensors: of any dtype, with the same number of samples, at least one.
        dim: the dimension of the samples, from 0; negative ones count from the end.

    Returns:
        What a ``for`` loop iterates over, once: ``x`` for one tensor, ``(x, y)`` for two.

    Raises:
        TypeError: an argument is no tensor.
        ValueError: the tensors have no such dimension, or different numbers of samples in it.
        OptionError: from the loop, with ``--batch per-rank`` or ``--accumulate``.
    """
    for tensor in tensors:
        if not hasattr(tensor, "movedim"):
            what = f"nbmgpu.share got {type(tensor).__name__}, and divides tensors"
            raise TypeError(format_message(what, instead="nbmgpu.share(x, y)"))
        if not -tensor.ndim <= dim < tensor.ndim:
            what = f"nbmgpu.share(dim={dim}) got a tensor of shape {tuple(tensor.shape)}"
            raise ValueError(format_message(what, instead="the dimension of the samples"))
    sizes = [tensor.shape[dim] for tensor in tensors]
    if not sizes or min(sizes) != max(sizes) or not sizes[0]:
        what = f"nbmgpu.share got tensors with {sizes} samples in dimension {dim}"
        raise ValueError(
            format_message(what, "All need the same number, at least 1", "nbmgpu.share(x, y)")
        )
    return SharedBatch(tensors, dim)
