"""Finds what defines the names that a cell reads: statements of earlier cells, or stored values.

Imports, functions, classes, and the construction of models, optimizers, datasets and loaders are
source.  What was computed is stored: tensors and arrays, what was trained, what random numbers
were drawn for, and what has changed since it was defined.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import Subset

from nbmgpu.cell.cell import IPYTHON_FUNCTIONS, is_of_ipython
from nbmgpu.errors import CellError, format_message

from .statements import Statement
from .training_objects import called_object
from .values import (
    Kind,
    StoredValue,
    holds_parameters,
    importing_statement,
    is_plain,
    kind_of,
    literal_value,
    stored_subset,
    stored_value,
)

RANDOM = re.compile(
    r"\b(?:rand\w*|normal\w*|uniform\w*|shuffle|sample|permutation|choices?|multinomial|bernoulli"
    r"|make_\w+|\w+_split)\("
)
"""Calls whose result is probably another one each time."""

FIXED_TENSORS = frozenset({"arange", "eye", "full", "linspace", "ones", "zeros"})
"""Functions that make the same tensor or array at each call with literals."""

MISSING = object()


@dataclass(frozen=True)
class Item:
    """A part of a script that comes from the notebook.

    Attributes:
        order: its position among others.
        statement: a statement of an earlier cell.
        stored: or the value of a name.
        name: the name of ``stored``.
    """

    order: float
    statement: Statement | None = None
    stored: StoredValue | None = None
    name: str = ""

    @property
    def binds(self) -> frozenset[str]:
        """The names that it binds."""
        return self.statement.binds if self.statement else frozenset({self.name})

    @property
    def text(self) -> str:
        """Its source."""
        return self.statement.text if self.statement else self.stored.code if self.stored else ""


@dataclass
class Definitions:
    """What defines the names that a cell reads.

    Attributes:
        imports: import statements, of one name each.
        items: all else, in order.
        redrawn: names that should be stored and cannot be, so that a script draws other numbers.
    """

    imports: dict[str, None] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    redrawn: tuple[str, ...] = ()

    @property
    def stored(self) -> list[Item]:
        """The names that are loaded from files."""
        return [item for item in self.items if item.stored and item.stored.file]

    def last_order(self, name: str) -> float:
        """Return the position of the last statement that makes or changes the object ``name``."""
        orders = [
            item.order
            for item in self.items
            if name in item.binds or (item.statement and name in item.statement.changes)
        ]
        return max(orders, default=-1.0)

    def first_order(self, name: str) -> float:
        """Return the position of the statement that makes the object ``name``."""
        return min((item.order for item in self.items if name in item.binds), default=-1.0)


class DefinitionSearch:
    """Collects the definitions of names, and of the names that these definitions read."""

    def __init__(
        self, statements: Sequence[Statement], values: Mapping[str, Any], at_start: bool
    ) -> None:
        """Search in ``statements``.

        Args:
            statements: those of earlier cells, in order.
            values: the notebook's objects by name.
            at_start: whether ``values`` are as they were before the cell; else they may be
                results of the cell.
        """
        self._statements = statements
        self._values = values
        self._at_start = at_start
        self._chosen: dict[int, Statement] = {}
        self._stored: dict[str, Item] = {}
        self._imports: dict[str, None] = {}
        self._redrawn: dict[str, None] = {}

    def find(self, names: Iterable[str], own: frozenset[str]) -> Definitions:
        """Return the definitions of ``names``.

        Args:
            names: what the cell reads.
            own: what it binds itself, so that it need not exist before.

        Raises:
            CellError: a name has no statement that defines it, and its value cannot be stored.
        """
        todo, done = list(names), set()
        while todo:
            name = todo.pop()
            if name in done:
                continue
            done.add(name)
            if name in own and name not in self._values and not self._chain(name):
                continue
            todo += self._define(name)
        statements = [Item(s.order, statement=s) for s in self._chosen.values()]
        items = sorted([*statements, *self._stored.values()], key=lambda item: item.order)
        return Definitions(dict(sorted(self._imports.items())), items, tuple(self._redrawn))

    def drawing_statements(self, name: str) -> list[Statement]:
        """Return the statements that bind ``name``, if they draw random numbers."""
        return [s for s in self._chain(name) if self._draws([s])]

    def is_bound_before(self, name: str, statement: Statement) -> bool:
        """Return whether no statement from ``statement`` on binds ``name``."""
        chain = self._chain(name)
        return not chain or chain[-1].order < statement.order

    def _define(self, name: str) -> list[str]:
        """Define one name; return what its definition reads."""
        value = self._values.get(name, MISSING)
        chain = self._chain(name)
        if name in IPYTHON_FUNCTIONS and not chain and is_of_ipython(value):
            if name == "display":  # the others are Python's own in a script
                self._imports["from IPython.display import display"] = None
            return []
        if value is MISSING and not chain:
            if hasattr(builtins, name) or name in ("__file__", "__name__", "get_ipython"):
                return []
            what = f"`{name}` is defined neither in an earlier cell nor in the notebook"
            raise CellError(format_message(what, instead="run the cell that defines it"))
        if chain and self._import(name, chain[-1]):
            assigned = [s for s in self._changes(name, "other", chain) if s.assigns_attributes]
            return self._choose(assigned)
        if not chain and (statement := importing_statement(name, value)):
            self._imports[statement] = None
            return []
        kind: Kind = "other" if value is MISSING else kind_of(value)
        changes = self._changes(name, kind, chain)
        if value is not MISSING and self._is_to_store(value, kind, chain, changes):
            needed = self._store(name, value, chain)
            if needed is not None:
                return needed
            if not chain:
                what = f"`{name}` can neither be defined by source nor stored in a file"
                instead = f"make `{name}` inside the cell, or --with-nbmgpu"
                raise CellError(format_message(what, instead=instead))
            self._redrawn[name] = None
        return self._choose([*chain, *changes])

    def _choose(self, statements: list[Statement]) -> list[str]:
        """Take ``statements`` into the script; return what they read."""
        self._chosen.update((statement.order, statement) for statement in statements)
        return [read for statement in statements for read in statement.reads]

    def _chain(self, name: str) -> list[Statement]:
        """Return the last statement that binds ``name``, after those that it builds on."""
        chain: list[Statement] = []
        for statement in reversed(self._statements):
            if name not in statement.binds and not self._star_binds(name, statement):
                continue
            if statement.is_definition and getattr(statement.node, "name", name) != name:
                continue  # a function that binds it by `global`, once it is called
            chain.insert(0, statement)
            if name not in statement.reads_at_once:
                break
        return chain

    def _star_binds(self, name: str, statement: Statement) -> bool:
        for module in statement.star_imports:
            try:
                if hasattr(importlib.import_module(module), name):
                    return True
            except Exception:  # of user code
                continue
        return False

    def _import(self, name: str, statement: Statement) -> bool:
        """Add the import of ``name`` alone, if ``statement`` is an import; return whether it is."""
        node = statement.node
        if isinstance(node, ast.Import):
            for alias in node.names:
                if (alias.asname or alias.name.partition(".")[0]) == name:
                    self._imports[ast.unparse(ast.Import([alias]))] = None
            return True
        if not isinstance(node, ast.ImportFrom):
            return False
        for alias in node.names:
            one = ast.alias(name) if alias.name == "*" else alias
            if (one.asname or one.name) == name:
                self._imports[ast.unparse(ast.ImportFrom(node.module, [one], node.level))] = None
        return True

    def _changes(self, name: str, kind: Kind, chain: list[Statement]) -> list[Statement]:
        """Return the statements that have changed the object since it was defined."""
        if not chain:
            return []
        after = [s for s in self._statements if s.order > chain[0].order and s not in chain]
        changes = [s for s in after if name in s.changes]
        if kind in ("module", "optimizer", "scheduler") and self._at_start:
            # Their states come from files: what is missing is what they are made of.
            changes = [s for s in changes if ".load_state_dict(" not in s.text]
            changes = [s for s in changes if ".step(" not in s.text]
        return changes

    def _is_to_store(
        self,
        value: Any,
        kind: Kind,
        chain: list[Statement],
        changes: list[Statement],
    ) -> bool:
        """Return whether a script loads the value instead of computing it again."""
        if not chain:
            return True
        last = chain[-1]
        if last.is_definition or kind in ("module", "optimizer", "scheduler"):
            return False
        if holds_parameters(value):  # an optimizer would train the copies
            return False
        if kind == "loader":
            return self._draws(chain)
        source = last.node.value if isinstance(last.node, ast.Assign | ast.AnnAssign) else None
        is_literal, written = literal_value(source)
        if is_literal and not (self._at_start and is_plain(value) and written != value):
            return bool(changes) and self._at_start and not is_plain(value)
        if kind == "generator":
            return False
        if kind == "data":
            return not self._is_fixed_tensor(source)
        if is_literal:
            return True
        computed = any(not s.is_simple for s in changes) or isinstance(
            last.node, ast.For | ast.While | ast.AugAssign
        )
        return computed or self._draws([*chain, *changes]) or self._uses_training_objects(chain)

    def _draws(self, statements: list[Statement]) -> bool:
        """Return whether statements, or functions and classes that they use, draw numbers."""
        todo, done = [*statements], set()
        while todo:
            statement = todo.pop()
            if RANDOM.search(statement.text):
                return True
            done.add(statement.order)
            reads = statement.reads if statement.is_definition else statement.reads_at_once
            definitions = [chain[-1] for name in reads if (chain := self._chain(name))]
            todo += [d for d in definitions if d.is_definition and d.order not in done]
        return False

    def _is_fixed_tensor(self, source: ast.expr | None) -> bool:
        """Return whether an expression makes a tensor of literals."""
        if not isinstance(source, ast.Call):
            return False
        called = called_object(source, self._values)
        name = getattr(called, "__name__", "")
        literals = all(literal_value(argument)[0] for argument in source.args)
        return literals and (name in FIXED_TENSORS or name in ("tensor", "array"))

    def _uses_training_objects(self, chain: list[Statement]) -> bool:
        """Return whether a value was computed from a model or an optimizer.

        An object that is made with one, such as a Trainer, was not.
        """
        source = getattr(chain[-1].node, "value", None)
        if isinstance(called_object(source, self._values), type):
            return False
        return any(
            name in self._values and kind_of(self._values[name]) in ("module", "optimizer")
            for statement in chain
            for name in statement.reads_at_once
        )

    def _store(self, name: str, value: Any, chain: list[Statement]) -> list[str] | None:
        """Store a value; return the names that loading it needs, or None if it cannot be."""
        order = chain[-1].order + 0.5 if chain else -1.0
        dataset = self._name_of(value.dataset, order) if isinstance(value, Subset) else ""
        stored = stored_subset(name, value, dataset) if dataset else stored_value(name, value)
        if stored is None:
            return None
        self._imports.update(dict.fromkeys(stored.imports))
        self._stored[name] = Item(order, stored=stored, name=name)
        return [dataset] if dataset else list(stored.needs)

    def _name_of(self, value: object, before: float) -> str:
        """Return the name that holds ``value`` and was bound earlier, or an empty string."""
        for name, found in self._values.items():
            if found is value and not name.startswith("_"):
                chain = self._chain(name)
                if chain and chain[-1].order < before:
                    return name
        return ""
