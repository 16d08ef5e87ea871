"""Which statements that seed random number generators an exported script has.

A script of a finished run has no random states to load, so it draws as the notebook did: from the
last seed before each statement that draws, and from the last one before the cell.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from nbmgpu.errors import CellError

from .cell_code import CellCode
from .definitions import RANDOM, Definitions, DefinitionSearch, Item
from .request import ExportRequest
from .statements import SEEDING, Statement, last_name, read_statement
from .training_objects import called_object
from .values import kind_of, literal_value

DRAWN = "# It is loaded below, and drawn here for the sake of the random numbers after it."


def find_definitions(
    request: ExportRequest,
    statements: Sequence[Statement],
    values: Mapping[str, Any],
    cell: CellCode,
) -> Definitions:
    """Return the definitions of what ``cell`` reads, and the seeds that its numbers depend on.

    Args:
        request: what is exported.
        statements: those of earlier cells, in order.
        values: the notebook's objects by name.
        cell: the code of the cell.

    Raises:
        CellError: see ``DefinitionSearch.find``.
    """

    def find(names: Iterable[str]) -> Definitions:
        return search.find(names, cell.own)

    search = DefinitionSearch(statements, values, request.at_start)
    found = find(cell.reads)
    if request.at_start:  # the states of the generators are loaded
        return found
    drawn = [item.order for item in found.items if _may_draw(item, values)]
    if request.options.seed is None:  # else ranks seed themselves, and the cell draws from that
        drawn.append(len(statements))
    spans = _needed_seeds(statements, drawn, values)
    needed = [_with_values_of_its_time(seed, statements) for seed, _ in spans]
    for each in _drawn_before(search, found, values):
        ends = (end for seed, end in spans if seed.order < each.order < end)
        if any(each.order < order < end for end in ends for order in drawn):
            needed.append(dataclasses.replace(each, text=f"{DRAWN}\n{each.text}"))
    names = [name for each in needed for name in each.reads]
    try:
        found = find([*cell.reads, *names])
    except CellError:  # of a name that is read for nothing but a number that is loaded
        needed = needed[: len(spans)]
        search = DefinitionSearch(statements, values, request.at_start)
        found = find([*cell.reads, *(name for each in needed for name in each.reads)])
    known = {item.order for item in found.items}
    more = [Item(each.order, statement=each) for each in needed if each.order not in known]
    items = sorted([*found.items, *more], key=lambda item: item.order)
    return dataclasses.replace(found, items=items)


def _drawn_before(
    search: DefinitionSearch, found: Definitions, values: Mapping[str, Any]
) -> list[Statement]:
    """Return the statements that drew what the script loads, where it can draw it again.

    It may not where a statement computes with models, or reads what was bound again later.
    """
    drawing: dict[int, Statement] = {}
    for item in found.items:
        if item.statement is not None:
            continue
        for statement in search.drawing_statements(item.name):
            reads = statement.reads_at_once
            kinds = {kind_of(values[name]) for name in reads if name in values}
            is_same = all(search.is_bound_before(name, statement) for name in reads)
            if is_same and statement.is_simple and not kinds & {"module", "optimizer"}:
                drawing[statement.order] = statement
    return list(drawing.values())


def _needed_seeds(
    statements: Sequence[Statement], drawn: Sequence[float], values: Mapping[str, Any]
) -> list[tuple[Statement, int]]:
    """Return the seeds after which something is drawn before the next one, in order.

    Each comes with the position of the next one.

    Args:
        statements: those of earlier cells, in order.
        drawn: the positions of what draws.
        values: the notebook's objects by name.
    """
    functions = {
        s.node.name: s.node for s in statements if isinstance(s.node, ast.FunctionDef)
    }  # fmt: skip
    seeds: list[tuple[Statement, frozenset[str]]] = []
    for statement in statements:
        names = _seeding_calls(statement.node, functions)
        if not all(_is_generator(name, values) for name in names):
            seeds.append((statement, names))
    needed = []
    for place, (seed, names) in enumerate(seeds):
        later = (s.order for s, others in seeds[place + 1 :] if _replaces(others, names))
        end = next(later, len(statements) + 1)
        if any(seed.order < order < end for order in drawn):
            needed.append((seed, end))
    return needed


def _seeding_calls(node: ast.AST, functions: Mapping[str, ast.FunctionDef]) -> frozenset[str]:
    """Return the functions by which a statement seeds, if it does nothing else.

    It is a call, an ``if`` with such calls, or the call of a function of the notebook with them.
    """
    match node:
        case ast.If(body=body, orelse=orelse):
            return _all_seeding([*body, *orelse], functions)
        case (
            ast.Expr(value=ast.Call() as call)
            | ast.Assign(targets=[ast.Name()], value=ast.Call() as call)
        ):
            name = ast.unparse(call.func)
            if last_name(call.func) in SEEDING and name not in functions:
                return frozenset({name})
            if name in functions:
                others = {key: node for key, node in functions.items() if key != name}
                return _all_seeding(functions[name].body, others)
    return frozenset()


def _all_seeding(
    body: Sequence[ast.stmt], functions: Mapping[str, ast.FunctionDef]
) -> frozenset[str]:
    """Return the functions by which ``body`` seeds, or none if one of its lines may do more."""
    found: set[str] = set()
    for node in body:
        is_setting = isinstance(node, ast.Assign) and not any(
            isinstance(each, ast.Call) for each in ast.walk(node)
        )  # torch.backends.cudnn.deterministic = True
        is_harmless = isinstance(node, ast.Pass | ast.Import | ast.ImportFrom | ast.Return)
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_setting or is_harmless or is_text:
            continue
        calls = _seeding_calls(node, functions)
        if not calls and "deterministic" not in ast.unparse(node):
            return frozenset()
        found |= calls
    return frozenset(found)


def _replaces(later: frozenset[str], earlier: frozenset[str]) -> bool:
    """Return whether after the calls ``later`` nothing is left of the calls ``earlier``."""

    def covered(name: str) -> bool:
        is_of_gpus = name.startswith("torch.cuda.")  # torch.manual_seed seeds them, too
        return name in later or (is_of_gpus and "torch.manual_seed" in later)

    return all(map(covered, earlier))


def _is_generator(name: str, values: Mapping[str, Any]) -> bool:
    """Return whether ``name`` is the method of a generator, which is defined where it is used."""
    return isinstance(values.get(name.partition(".")[0]), torch.Generator)


def _may_draw(item: Item, values: Mapping[str, Any]) -> bool:
    """Return whether random numbers may be drawn by a statement of the script."""
    statement = item.statement
    if statement is None or statement.is_definition:
        return False
    if RANDOM.search(statement.text):
        return True
    made = called_object(getattr(statement.node, "value", None), values)
    if isinstance(made, type) and made.__module__.startswith("torch.utils.data"):
        return False
    kinds = {kind_of(values[name]) for name in statement.binds if name in values}
    if kinds and kinds <= {"optimizer", "scheduler", "loader", "generator", "plain"}:
        return False
    return any(isinstance(node, ast.Call) for node in ast.walk(statement.node))


def _with_values_of_its_time(seed: Statement, statements: Sequence[Statement]) -> Statement:
    """Return a seed with the number that a name had then, if it was bound again later.

    Of such a name, a script has the last value alone.
    """
    then: dict[str, str] = {}
    for name in seed.reads_at_once:
        bindings = [s for s in statements if name in s.binds]
        before = [s for s in bindings if s.order < seed.order]
        value = getattr(before[-1].node, "value", None) if before else None
        if before and before[-1] is not bindings[-1] and literal_value(value)[0]:
            then[name] = ast.unparse(value) if isinstance(value, ast.expr) else ""
    if not then:
        return seed
    tree = _Substitution(then.__getitem__, frozenset(then)).visit(ast.parse(seed.text))
    code = ast.unparse(tree)
    return read_statement(code, ast.parse(code).body[0], seed.order)


@dataclasses.dataclass
class _Substitution(ast.NodeTransformer):
    """Replaces names by expressions."""

    source: Callable[[str], str]
    names: frozenset[str]

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.names and isinstance(node.ctx, ast.Load):
            return ast.parse(self.source(node.id), mode="eval").body
        return node
