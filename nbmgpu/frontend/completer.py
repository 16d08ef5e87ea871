"""Tab completions for ``%%mgpu`` and ``%mgpu`` lines: flags, values, names to pull, run ids."""

from __future__ import annotations

import functools
import os
import re
import symtable
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from itertools import islice, takewhile
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult

from nbmgpu.comparison.request import TABLES
from nbmgpu.devices.placement import DEFAULT_CPU_RANKS
from nbmgpu.devices.probe import probe
from nbmgpu.options.clean_options import CLEAN
from nbmgpu.options.commands import COMMANDS, INFO_OPTIONS
from nbmgpu.options.engine_profiles import known_engines
from nbmgpu.options.flag_table import Flag, FlagTable
from nbmgpu.options.flags import RUN
from nbmgpu.runs.engine_plugins import engine_names
from nbmgpu.runs.post_mortem import saved_ranks
from nbmgpu.runs.run_list import iter_runs

from .engine_command import PROFILE
from .export_command import OWN_OPTIONS

MAX_RUNS = 30
"""Maximum number of run ids that are offered."""

LIST_FLAGS = ("--pull", "--strategies")
"""Flags that take all names up to the next flag."""


def complete(
    context: CompletionContext,
    namespace: Mapping[str, Any],
    to_python: Callable[[str], str] = str,
) -> SimpleMatcherResult:
    """Return the completions at the cursor of an nbmgpu line; none on other lines.

    Args:
        context: the text and the cursor position.
        namespace: the notebook's names.
        to_python: turns a cell with shell and magic lines into plain Python.
    """
    lines = context.full_text.split("\n")
    above, below = lines[: context.cursor_line], lines[context.cursor_line + 1 :]
    if match := re.match(r"\s*%mgpu\s+(.*)", context.text_until_cursor):
        *before, word = re.split(r"\s+", match[1])
        texts = _command_completions(before, namespace)
    elif all(map(_may_precede_magic, above)) and (
        match := re.match(r"%%mgpu\s+(.*)", context.text_until_cursor)
    ):
        *before, word = re.split(r"\s+", match[1])
        names = functools.partial(names_to_pull, "\n".join(below), namespace, to_python)
        table = TABLES.get(before[0], RUN) if before else RUN
        texts, word = _flag_completions(before, word, names, table)
        if not before:
            texts += TABLES
    else:
        return {"completions": [], "suppress": False}
    matching = [SimpleCompletion(text, type="param") for text in texts if text.startswith(word)]
    return {"completions": matching, "suppress": True, "matched_fragment": word, "ordered": True}


def _may_precede_magic(line: str) -> bool:
    """Return whether ``%%mgpu`` may follow ``line``: it is empty, or a magic such as ``%%time``."""
    return not line.strip() or line.startswith("%%")


def _command_completions(before: list[str], namespace: Mapping[str, Any]) -> Iterable[str]:
    """Return the completions after ``%mgpu`` and the words ``before``."""
    if not before:
        return COMMANDS
    if before[0] in ("advise", "pick"):
        return [name for name in _training_names(namespace) if name not in before]
    if before[0] == "export":
        runs = islice(iter_runs(), MAX_RUNS)
        return [*OWN_OPTIONS, *(run.id for run in runs)] if len(before) < 3 else OWN_OPTIONS
    if before[0] == "debug":
        return _debug_completions(before[1:])
    if before == ["info"]:
        return INFO_OPTIONS
    if before[0] == "clean":
        return _flag_completions(before[1:], "", tuple, CLEAN)[0]
    if before[0] == "engine":
        return _profile_completions(before[1:])
    if before in (["show"], ["attach"], ["stop"]):
        runs = islice(iter_runs(), MAX_RUNS)
        return [run.id for run in runs if before != ["stop"] or not run.over]
    return ()


def _debug_completions(before: list[str]) -> Iterable[str]:
    """Return the completions after ``%mgpu debug``: runs with saved variables, and the option."""
    if "--rank" in before:
        return ()
    with_variables = (run.id for run in islice(iter_runs(), MAX_RUNS) if saved_ranks(run))
    return ["--rank", *(() if before else with_variables)]


def _profile_completions(before: list[str]) -> Iterable[str]:
    """Return the completions after ``%mgpu engine`` and the words ``before``."""
    if not before:
        return ("add", "remove")
    if before == ["remove"]:
        return known_engines()[len(engine_names()) :]
    if before[0] == "add" and len(before) > 1:
        if before[-1] == "--engine":
            return engine_names()
        return [flag.name for flag in PROFILE.flags if flag.name not in before]
    return ()


def _training_names(namespace: Mapping[str, Any]) -> list[str]:
    """Return the names of models, optimizers and loaders, if torch is imported already."""
    torch, data = sys.modules.get("torch"), sys.modules.get("torch.utils.data")
    if torch is None or data is None:
        return []
    kinds = (torch.nn.Module, torch.optim.Optimizer, data.DataLoader)
    return [k for k, v in namespace.items() if not k.startswith("_") and isinstance(v, kinds)]


def _flag_completions(
    before: list[str], word: str, names: Callable[[], Iterable[str]], table: FlagTable
) -> tuple[list[str], str]:
    """Return the completions of ``word``, and the part of it that they replace."""
    flag_name, equals, value = word.partition("=")
    if equals:
        before, word = [*before, flag_name], value
    values = list(takewhile(lambda text: not text.startswith("-"), reversed(before)))
    by_name = table.by_name
    flag = by_name.get(before[-1 - len(values)]) if len(values) < len(before) else None
    texts: list[str] = []
    if (
        flag
        and flag.metavar
        and not word.startswith("-")
        and (not values or flag.name in LIST_FLAGS)
    ):
        *listed, word = word.split(",")
        taken = set(",".join([*values, *listed]).split(","))
        texts = [
            text for text in _value_completions(flag, bool(listed), names) if text not in taken
        ]
        if not values:
            return texts, word
    used = {by_name[text].field for x in before if (text := x.partition("=")[0]) in by_name}
    return texts + [flag.name for flag in table.flags if flag.field not in used], word


def _value_completions(
    flag: Flag, in_list: bool, names: Callable[[], Iterable[str]]
) -> Iterable[str]:
    """Return the values to offer for a flag."""
    if flag.name == "--pull":
        return names()
    if flag is RUN.by_name["--gpus"]:
        count = _count_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
        return map(str, range(count)) if in_list else ["all", *map(str, range(1, count + 1))]
    return flag.completions()


@functools.lru_cache(maxsize=1)
def _count_gpus(_visible_devices: str | None) -> int:
    """Return the number of GPUs, else of cores; cached for each ``CUDA_VISIBLE_DEVICES``."""
    machine = probe()
    return len(machine.gpus) if machine.cuda else max(DEFAULT_CPU_RANKS, machine.cores)


def names_to_pull(
    cell: str, namespace: Mapping[str, Any], to_python: Callable[[str], str] = str
) -> list[str]:
    """Return the names that the cell assigns, then those of the notebook's data."""
    fixed = (ModuleType, FunctionType, BuiltinFunctionType, type)  # a run does not change these
    data = [k for k, v in namespace.items() if not k.startswith("_") and not isinstance(v, fixed)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = symtable.symtable(to_python(cell), "<cell>", "exec")
    except SyntaxError:  # the cell is incomplete
        return data
    assigned = [symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned()]
    return list(dict.fromkeys(assigned + data))
