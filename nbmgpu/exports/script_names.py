"""Names of the notebook that a script cannot keep, and statements whose order it would change."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Sequence

from nbmgpu.errors import CellError, StrategyError, format_message

from .definitions import Definitions
from .loop_edits import SHARE
from .refusals import refused
from .statements import Statement, without_gradients

OWN_NAMES = frozenset({
    "DATA", "RankBatches", "Replicated", "ShardedLoader", "device_mesh", "dist", "EngineOptimizer",
    "engine_state_dict", "full_state_dict",
    "load_full_state_dict", "main", "mean_over_ranks", "mean_over_shared", "print_once",
    "save_once", "SharedBatch", "SilentWriter",
})  # fmt: skip
"""What a script itself defines."""

ONE_DEVICE = re.compile(r"\bDataParallel\(|[\"']cuda:\d+[\"']")
"""Code that puts a model on GPUs of its own choice."""


def check_names(bound: Iterable[str], read: Iterable[str]) -> None:
    """Check the names that the notebook's part of a script binds and reads.

    Raises:
        CellError: one of them means something else in a script.
    """
    bound, read = set(bound), set(read)
    for name in sorted(bound & OWN_NAMES):
        what = f"`{name}` is a name of the script itself"
        raise CellError(format_message(what, instead=f"call it my_{name} in the notebook"))
    for name in sorted(n for n in bound & read if hasattr(builtins, n)):
        what = f"The cell assigns `{name}`, which it also uses as Python's own `{name}`"
        raise CellError(format_message(what, instead=f"call it my_{name}"))


def check_devices(codes: Iterable[str]) -> None:
    """Check that no code chooses its GPUs.

    Raises:
        StrategyError: some does, so that all ranks would use the same ones.
    """
    for code in codes:
        if found := ONE_DEVICE.search(code):
            what = f"`{found[0].rstrip('(')}` chooses GPUs by itself, alike on every rank"
            raise StrategyError(refused(what, '"cuda", and no DataParallel'))


def check_order(definitions: Definitions, statements: Sequence[Statement]) -> None:
    """Check that each statement finds the values that it found in the notebook.

    Of a name that is bound several times, a script has the last binding.

    Raises:
        CellError: a statement has read an earlier one.
    """
    items = [item for item in definitions.items if item.statement]
    for item in items:
        reader = item.statement
        if reader is None or reader.is_definition:
            continue
        for name in sorted(reader.reads_at_once):
            if any(name in other.binds and other.order <= item.order for other in items):
                continue
            later = any(name in other.binds and other.order > item.order for other in items)
            before = any(name in s.binds and s.order < item.order for s in statements)
            if later and before:
                what = f"`{name}` was bound again after this line had read it: {_line(reader)}"
                instead = f"give the later `{name}` another name"
                raise CellError(format_message(what, instead=instead))


def check_zip(cell: ast.Module, loaders: Iterable[str]) -> None:
    """Check that no loop takes batches of two loaders at once.

    Raises:
        StrategyError: one does: a loss of both has no single weight.
    """
    names = set(loaders)
    for node in ast.walk(cell):
        match node:
            case ast.Call(func=ast.Name(id="zip"), args=args):
                read = [n.id for arg in args for n in ast.walk(arg) if isinstance(n, ast.Name)]
                if len({*read} & names) + read.count("DataLoader") > 1:
                    what = "A loop takes batches of several loaders at once"
                    raise StrategyError(refused(what, "a dataset that has both parts"))


def check_shares(trees: Sequence[ast.Module], has_loaders: bool) -> None:
    """Check that ranks can have parts of the batches of ``nbmgpu.share`` in the script.

    Args:
        trees: the cell and the notebook's definitions.
        has_loaders: whether ranks have parts of a loader's batches as well.

    Raises:
        StrategyError: a loop over such a batch does not train on it, or there are loaders.
    """
    functions = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    training = {n.name for n in functions if ".backward(" in ast.unparse(n)}
    for tree in trees:
        evaluated = set(without_gradients(tree))
        for loop in (node for node in ast.walk(tree) if isinstance(node, ast.For)):
            if f"{SHARE}(" not in ast.unparse(loop.iter) or id(loop) in evaluated:
                continue
            if has_loaders:
                what = "The cell trains on a DataLoader and on batches of nbmgpu.share"
                raise StrategyError(refused(what, "two cells"))
            nodes = [node for part in loop.body for node in ast.walk(part)]
            names = {node.id for node in nodes if isinstance(node, ast.Name)}
            if not any(isinstance(n, ast.Attribute) and n.attr == "backward" for n in nodes) and (
                not names & training
            ):
                what = "A loop over nbmgpu.share has no backward() in it"
                raise StrategyError(refused(what, "loss.backward() in the loop"))


def _line(statement: Statement) -> str:
    return ast.unparse(statement.node).split("\n")[0]
