"""The changes that make code for one device the code of a rank, as a person would make them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from .source_edits import SourceEdits
from .statements import base_name, last_name, without_gradients
from .tracker_calls import edit_trackers

SHARE = "nbmgpu.share"

MEANS = {"ShardedLoader": "mean_over_ranks", "SharedBatch": "mean_over_shared"}
"""The helper that averages a loss, by what ranks have a part of."""

OF_UNKNOWN = {"full_state_dict": "whole_state_dict", "engine_state_dict": "state_dict_of"}
"""The helper for the state of an object that may be a model, by the one for that of a model."""

RENAMED_CALLS = {
    "print": "print_once",
    "display": "print_once",
    "pprint": "print_once",
    "torch.save": "save_once",
}
"""Calls that only rank 0 carries out, and the helpers that they become."""

PROGRESS_BARS = ("tqdm", "trange", "auto.tqdm", "tqdm.tqdm", "tqdm.trange", "tqdm.notebook.tqdm")

COUNTS = "line `{line}` counts or reads numbers of this rank's part of the batch"


@dataclass
class LoopEdits:
    """Edits one piece of code: the cell, or a function or class of an earlier cell.

    Attributes:
        edits: of the source.
        weighs: the class of which ranks have parts, ``ShardedLoader`` or ``SharedBatch``; empty if
            every rank has whole batches.
        waits: whether files that it loads may be those that rank 0 saves.
        used: the helpers that it now uses.
        notes: what differs from one device, as sentences without a full stop.
        backward_passes: how many calls of ``backward`` were found.
    """

    edits: SourceEdits
    weighs: str
    waits: bool = False
    used: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    backward_passes: int = 0

    def edit(self) -> None:
        """Weigh losses, and let rank 0 alone print and save."""
        for scope in _scopes(self.edits.tree):
            self._weigh_losses(scope)
        for node in ast.walk(self.edits.tree):
            if isinstance(node, ast.Call):
                self._edit_call(node)
        self._remove_metrics_logs()
        self.used |= edit_trackers(self.edits)

    def _remove_metrics_logs(self) -> None:
        """Remove calls of ``nbmgpu.log``; a block of nothing else needs a ``pass``."""
        for parent in ast.walk(self.edits.tree):
            for body in (getattr(parent, name, None) for name in ("body", "orelse", "finalbody")):
                if not isinstance(body, list):
                    continue
                logs = [node for node in body if _is_metrics_log(node)]
                if logs and len(logs) == len(body) and parent is not self.edits.tree:
                    self.edits.replace(logs.pop(0), "pass")
                for node in logs:
                    self.edits.remove(node)

    def wrap_new_loaders(self) -> None:
        """Shard the loaders that the code makes."""
        for node in ast.walk(self.edits.tree):
            if isinstance(node, ast.Call) and last_name(node.func) == "DataLoader":
                self.edits.surround(node, "ShardedLoader(", ")")
                self.used.add("ShardedLoader")

    def replace_state_dicts(
        self, models: set[str], others: set[str], helper: str = "full_state_dict"
    ) -> None:
        """Gather the states of sharded models where the code asks for them, and load whole ones.

        Args:
            models: the names of models.
            others: the names of other objects; what has neither name, such as an argument of a
                function, is asked for its type.
            helper: what returns the state of a model.
        """
        for node in ast.walk(self.edits.tree):
            match node:
                case ast.Call(func=ast.Attribute(value=owner, attr=attr) as function):
                    is_model = isinstance(owner, ast.Name) and owner.id in models
                    if not is_model and not _may_be_model(owner, others):
                        continue
                    source = self.edits.source(owner)
                    if attr == "state_dict" and is_model:
                        self.edits.replace(node, f"{helper}({source})")
                        self.used.add(helper)
                    elif attr == "state_dict" and not node.args:
                        self.edits.replace(node, f"{OF_UNKNOWN[helper]}({source})")
                        self.used |= {helper, OF_UNKNOWN[helper]}
                    elif attr == "load_state_dict" and len(node.args) == 1:
                        self.edits.replace(function, "load_full_state_dict")
                        self.edits.surround(node.args[0], f"{source}, ", "")
                        self.used.add("load_full_state_dict")

    def gather_norms(self) -> None:
        """Let ``clip_grad_norm_`` return a plain tensor where its norm is read, as to print it."""
        statements = {id(n.value) for n in ast.walk(self.edits.tree) if isinstance(n, ast.Expr)}
        for node in ast.walk(self.edits.tree):
            match node:
                case ast.Call(func=function) if last_name(function) == "clip_grad_norm_":
                    if id(node) not in statements:
                        self.edits.surround(node, "", ".full_tensor()")

    def _weigh_losses(self, scope: list[ast.stmt]) -> None:
        nodes = list(_walk_scope(scope))
        for node in nodes:
            match node:
                case ast.Expr(value=ast.Call(func=ast.Attribute(attr="backward", value=loss))):
                    self._weigh(node, loss, nodes)

    def _weigh(self, statement: ast.Expr, loss: ast.expr, scope: list[ast.AST]) -> None:
        self.backward_passes += 1
        if not self.weighs:
            return
        self.used.add(self.weighs)
        weight, inner = f"{self.weighs}.weight", loss
        if isinstance(loss, ast.Call) and last_name(loss.func) == "scale" and loss.args:
            inner = loss.args[0]  # of a gradient scaler
        if inner is not loss:
            self.edits.surround(inner, "", f" * {weight}")
        elif isinstance(loss, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
            self.edits.surround(loss, "(", f" * {weight})")
        elif isinstance(loss, ast.BinOp) and isinstance(loss.op, ast.Mult | ast.Div):
            self.edits.surround(loss, "", f" * {weight}")
        else:
            self.edits.surround(loss, "(", f") * {weight}")
        name = _loss_name(inner)
        call = statement.value
        assert isinstance(call, ast.Call)
        keeps_graph = any(keyword.arg == "retain_graph" for keyword in call.keywords)
        if name and not keeps_graph and _is_read_after(name, statement, scope):
            mean = MEANS[self.weighs]
            self.edits.add_after(statement, f"{name} = {mean}({name})")
            self.used.add(mean)

    def _edit_call(self, call: ast.Call) -> None:
        dotted = ast.unparse(call.func)
        if dotted == SHARE and self.weighs == "SharedBatch":
            self.edits.replace(call.func, self.weighs)
            self.used.add(self.weighs)
        if helper := RENAMED_CALLS.get(dotted):
            self.edits.replace(call.func, helper)
            self.used.add(helper)
        elif dotted == "torch.load" and self.waits:
            self.edits.replace(call.func, "load_saved")
            self.used.add("load_saved")
        elif dotted in PROGRESS_BARS and not any(k.arg == "disable" for k in call.keywords):
            self.edits.append_argument(call, "disable=dist.get_rank() > 0")


def partial_numbers(tree: ast.Module) -> list[ast.stmt]:
    """Return the statements of training loops that read or count this rank's part of a batch."""
    found: list[ast.stmt] = []
    evaluated = set(without_gradients(tree))
    for loop in ast.walk(tree):
        if not isinstance(loop, ast.For | ast.While):
            continue
        statements = list(_statements(loop.body))
        losses = {_loss_name(loss) for each in statements if (loss := _loss_of(each))}
        if not losses:
            continue
        found += [
            each
            for each in statements
            if isinstance(each, ast.AugAssign | ast.Assign | ast.Expr)
            and id(each) not in evaluated
            and _reads_part(each, losses)
        ]
    return list(dict.fromkeys(found))


def evaluated_loaders(
    loaders: Iterable[str], cell: ast.Module, definitions: Mapping[str, str]
) -> set[str]:
    """Return the loaders that the cell itself iterates over, and only where it does not train.

    Args:
        loaders: names.
        cell: its syntax tree.
        definitions: sources of the notebook's functions and classes that it uses, by name.
    """
    training = {name for name, text in definitions.items() if ".backward(" in text}
    read_elsewhere = " ".join(definitions.values())
    uses: dict[str, list[bool]] = {}
    in_loops: set[int] = set()
    for node in ast.walk(cell):
        if isinstance(node, ast.For | ast.comprehension):
            body = node.body if isinstance(node, ast.For) else []
            trains = any(_trains(each, training) for part in body for each in ast.walk(part))
            for name in (each for each in ast.walk(node.iter) if isinstance(each, ast.Name)):
                uses.setdefault(name.id, []).append(trains)
                in_loops.add(id(name))
    others = {n.id for n in ast.walk(cell) if isinstance(n, ast.Name) and id(n) not in in_loops}
    return {
        name
        for name in loaders
        if name in uses
        and not any(uses[name])
        and name not in others
        and not re.search(rf"\b{name}\b", read_elsewhere)
    }


def _trains(node: ast.AST, training: set[str]) -> bool:
    """Return whether a node calls ``backward``, or a function of the notebook that does."""
    is_backward = isinstance(node, ast.Attribute) and node.attr in ("backward", "step", "fit")
    return is_backward or (isinstance(node, ast.Name) and node.id in training)


def _reads_part(statement: ast.stmt, losses: set[str]) -> bool:
    for node in ast.walk(statement):
        match node:
            case ast.Call(func=ast.Attribute(attr="item" | "tolist" | "numpy", value=value)):
                if base_name(value) not in losses and _first_name(value) not in losses:
                    return True
            case (
                ast.Call(func=ast.Name(id="len"), args=[ast.Name()])
                | ast.Call(func=ast.Attribute(value=ast.Name(), attr="size"))
                | ast.Subscript(value=ast.Attribute(value=ast.Name(), attr="shape"))
            ) if isinstance(statement, ast.AugAssign):
                return True
    return False


def _first_name(node: ast.expr) -> str:
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _loss_of(statement: ast.stmt) -> ast.expr | None:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="backward", value=loss))):
            if isinstance(loss, ast.Call) and last_name(loss.func) == "scale" and loss.args:
                return loss.args[0]
            return loss
    return None


def _loss_name(loss: ast.expr) -> str:
    """Return the name of a loss that is perhaps divided or multiplied, else nothing."""
    while isinstance(loss, ast.BinOp) and isinstance(loss.op, ast.Mult | ast.Div):
        loss = loss.right if isinstance(loss.left, ast.Constant) else loss.left
    return loss.id if isinstance(loss, ast.Name) else ""


def _is_read_after(name: str, statement: ast.stmt, scope: list[ast.AST]) -> bool:
    """Return whether ``name`` is read in lines below, before or without being bound again."""
    return any(
        isinstance(node, ast.Name)
        and node.id == name
        and isinstance(node.ctx, ast.Load)
        and (node.lineno, node.col_offset) > (statement.end_lineno, statement.end_col_offset)
        for node in scope
    )


def _scopes(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """Yield the body of the module and of each function in it."""
    yield tree.body
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.body


def _walk_scope(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the nodes of a body without those of nested functions."""
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    return (node for node in _walk_scope(body) if isinstance(node, ast.stmt))


def _may_be_model(owner: ast.expr, others: set[str]) -> bool:
    """Return whether an object may be a model, as far as its name says."""
    name = last_name(owner)
    if isinstance(owner, ast.Name) and name in others:
        return False
    return bool(name) and not any(word in name.lower() for word in ("opt", "sched", "scaler"))


def _is_metrics_log(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=function)):
            return ast.unparse(function) == "nbmgpu.log"
    return False
