"""Which names a piece of Python reads from the namespace it runs in, and which it binds there.

A name that is read where it is not settled (see ``nbmgpu.cell.control_flow``) has to be there
beforehand.
"""

# ruff: noqa: D102 - a visitor's methods are named after the nodes they visit

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from .control_flow import Flow, Settled
from .ipython_magics import Magic, magic_of, words
from .scopes import LocalNames, Scope, all_args, imported_name
from .source import Fragment

Site = tuple[int, int]
"""Where a name is read: line and column."""


class NameReader(Flow):
    """Collects what code at the top level of a notebook reads and binds.

    ``reads`` holds each name that may be read while it is not settled, with the first place.
    ``demands`` leaves out those that the code can do without, as under ``except NameError``.
    ``bound`` holds all names that exist at some moment, ``writes`` those that may stay.
    ``strings`` are the texts in the code: what ``eval`` would use.  ``opaque`` tells that
    names may be bound which nobody can foresee, ``lists_names`` that all there are are asked for.
    """

    def __init__(self, parse: Callable[[str], Fragment]) -> None:
        """Use ``parse`` for the Python that magics carry."""
        super().__init__()
        self.reads: dict[str, Site] = {}
        self.demands: dict[str, Site] = {}
        self.writes: dict[str, None] = {}
        self.deletes: dict[str, None] = {}
        self.bound: set[str] = set()
        self.star_imports: dict[str, None] = {}
        self.strings: list[tuple[str, Settled, Site]] = []
        self.opaque = self.lists_names = False

        self.module = self._scope = Scope("module")
        self._parse = parse
        self._line_of: Callable[[int], int] = lambda line: line
        self._classes: Settled = frozenset()  # being defined; methods run when they exist
        self._late_annotations = False

    def read(self, cell: Fragment) -> None:
        """Read a whole cell."""
        self._line_of = cell.line_of
        self._visit_all(cell.tree.body)

    def is_settled(self, name: str, settled: Settled) -> bool:
        """Tell whether a name of the notebook is settled."""
        return (self.module, name) in settled

    # ------------------------------------------------------------- names

    def _site(self, node: Any) -> Site:
        return self._line_of(node.lineno), node.col_offset

    def _read(self, name: str, node: ast.AST, demand: bool = True) -> None:
        name = self._scope.mangled(name)
        home = self._scope.home(name)
        settled = self.settled or frozenset()
        if home.kind not in ("module", "class") or (home, name) in settled:
            return
        if self.is_settled(name, settled):
            return
        if name == "__class__" and self._scope is not self.module:
            return  # the class around a method
        self._note(self.reads, name, self._site(node))
        # A class variable that is not bound shows the global one, if there is one.
        if demand and not self.guards and home is self.module:
            self._note(self.demands, name, self._site(node))

    @staticmethod
    def _note(places: dict[str, Site], name: str, site: Site) -> None:
        places[name] = min(site, places.get(name, site))

    def _bind(self, name: str | None, stays: bool = True, scope: Scope | None = None) -> None:
        if name is None:
            return
        scope = scope or self._scope
        name = scope.mangled(name)
        home = scope.home(name)
        if home is self.module:
            self.bound.add(name)
            if stays:
                self.writes[name] = None
        self._settle(home, name)

    def _settle(self, home: Scope, name: str) -> None:
        lasting = home.kind in ("module", "class") and name not in home.deleted
        if lasting and self.settled is not None:
            self.settled |= {(home, name)}

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self._bind(node.id)
            return
        self._read(node.id, node)
        if isinstance(node.ctx, ast.Del):
            name = self._scope.mangled(node.id)
            home = self._scope.home(name)
            if home is self.module:
                self.deletes[name] = None
            self._settle(home, name)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and self.settled is not None:
            self.strings.append((node.value, self.settled, self._site(node)))

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._visit_all([node.type])
        self._bind(node.name, stays=False)  # Python unbinds it at the end of the handler
        self._visit_all(node.body)

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        self._visit_all([node.pattern])
        self._bind(node.name)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        self._bind(node.name)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self._visit_all([*node.keys, *node.patterns])
        self._bind(node.rest)

    # ------------------------------------------------------------- bindings

    def visit_Assign(self, node: ast.Assign) -> None:
        self._visit_all([node.value, *node.targets])

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._read(node.target.id, node.target)
            self._visit_all([node.value, node.target])
        else:
            self._visit_all([node.target, node.value])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._visit_all([node.value])
        if node.value is not None or not isinstance(node.target, ast.Name):
            self.visit(node.target)
        if self._scope.kind in ("module", "class"):  # functions do not evaluate them
            self._visit_annotations([node.annotation])

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        scope = self._scope
        while scope.kind == "comprehension" and scope.parent is not None:
            scope = scope.parent
        self._bind(node.target.id, scope=scope)

    def visit_alias(self, node: ast.alias) -> None:
        self._bind(imported_name(node))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._late_annotations |= node.module == "__future__" and any(
            alias.name == "annotations" for alias in node.names
        )
        if node.names[0].name != "*":
            self.generic_visit(node)
            return
        module = "." * node.level + (node.module or "")
        self.star_imports[module] = None
        names = star_names(module)
        self.opaque |= names is None
        for name in names or ():
            self._bind(name, stays=False)  # ``star_imports`` speaks for them

    # ------------------------------------------------------------- inner blocks

    @contextmanager
    def _inside(self, scope: Scope) -> Iterator[None]:
        before, self._scope = self._scope, scope
        yield
        self._scope = before

    def _inner(self, kind: Literal["class", "function"], owner: str = "") -> Scope:
        return Scope(kind, parent=self._scope, owner=owner or self._scope.owner)

    def _visit_function(
        self, args: list[ast.arg], body: Sequence[ast.AST], exist: Settled = frozenset()
    ) -> None:
        """Visit a body that runs later, or never: at the earliest now, with what will ``exist``."""
        scope = LocalNames(self._inner("function")).read([*args, *body])
        before = self.settled
        self.settled = (before or frozenset()) | exist
        with self._inside(scope):
            self._visit_all(body)
        self.settled = before

    def _visit_annotations(self, annotations: Iterable[ast.expr | None]) -> None:
        if not self._late_annotations:
            self._visit_all(annotations)

    def _type_scope(self, node: Any) -> Scope:
        """Return the scope of ``[T]``, or the present one; bounds are evaluated on demand."""
        params = getattr(node, "type_params", None)
        if not params:
            return self._scope
        owner = node.name if isinstance(node, ast.ClassDef) else self._scope.owner
        scope = Scope("type", parent=self._scope, owner=owner)
        scope.locals |= {scope.mangled(param.name) for param in params}
        with self._inside(scope), self._guarded():
            self._visit_perhaps(params)
        return scope

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        args = all_args(node.args)
        self._visit_all([*node.decorator_list, *node.args.defaults, *node.args.kw_defaults])
        scope = self._type_scope(node)
        with self._inside(scope):
            self._visit_annotations([*(arg.annotation for arg in args), node.returns])
        self._bind(node.name)
        with self._inside(scope):
            self._visit_function(args, node.body, exist=self._classes)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_all([*node.args.defaults, *node.args.kw_defaults])
        self._visit_function(all_args(node.args), [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_all(node.decorator_list)
        name = self._scope.mangled(node.name)
        classes = self._classes
        with self._inside(self._type_scope(node)):
            self._visit_all([*node.bases, *node.keywords])
            scope = LocalNames(self._inner("class", owner=node.name)).read(node.body)
            self._classes |= {(self._scope.home(name), name)}
            with self._inside(scope):
                for given in ("__module__", "__qualname__"):
                    scope.locals.add(given)
                    self._settle(scope, given)
                self._visit_all(node.body)
            self._classes = classes
        self._bind(node.name)

    def visit_TypeAlias(self, node: Any) -> None:
        self._bind(node.name.id)
        with self._inside(self._type_scope(node)), self._guarded():
            self._visit_perhaps([node.value])  # evaluated when somebody asks for it

    def _visit_comprehension(self, node: Any) -> None:
        first = node.generators[0]
        self.visit(first.iter)  # belongs to the block around it
        scope = Scope("comprehension", parent=self._scope, owner=self._scope.owner)
        for generator in node.generators:
            LocalNames(scope).read([generator.target])
        before = self.settled
        with self._inside(scope):
            for generator in node.generators:
                if generator is not first:
                    self.visit(generator.iter)
                self._visit_all([generator.target, *generator.ifs])
            keyed = isinstance(node, ast.DictComp)
            self._visit_all([node.key, node.value] if keyed else [node.elt])
        self.settled = before

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension

    # ------------------------------------------------------------- calls

    def visit_Call(self, node: ast.Call) -> None:
        if self._visit_magic(node):
            return
        self.generic_visit(node)
        match node.func:
            case ast.Name("vars" | "dir") if not node.args:
                self.opaque = self.lists_names = True
            case ast.Name("globals" | "locals"):
                self.lists_names = True
            case ast.Attribute(attr="query" | "eval"):  # pandas finds @name in our variables
                for part in ast.walk(node):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        for name in re.findall(r"@([^\W\d]\w*)", part.value):
                            self._read(name, part, demand=False)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        before = self.lists_names
        self.generic_visit(node)
        match node:
            case ast.Subscript(value=ast.Call(func=ast.Name()), slice=ast.Constant()):
                self.lists_names = before  # globals()["x"] asks for one

    def _visit_magic(self, node: ast.Call) -> bool:
        magic = magic_of(node)
        if magic is None:
            return False
        mentions = magic.mentions
        if magic.code.strip():
            try:
                self._visit_fragment(magic, node)
            except SyntaxError:
                if magic.whole_cell:
                    raise
                mentions = words(magic.code)  # an option that we do not know, perhaps
        for name in mentions:
            self._read(name, node, demand=False)
        for name in magic.binds:
            self._bind(name, scope=self.module)
        self.opaque |= magic.opaque
        return True

    def _visit_fragment(self, magic: Magic, node: ast.Call) -> None:
        """Visit Python that a magic runs; some magics show an exception and go on."""
        fragment = self._parse(magic.code)
        before, line = (self.settled, self._line_of), self._line_of(node.lineno)
        self._line_of = fragment.line_of if magic.whole_cell else lambda _: line
        if magic.isolated:
            self._visit_function([], fragment.tree.body)
        else:
            self._visit_all(fragment.tree.body)
        self.settled, self._line_of = before


def star_names(module: str) -> set[str] | None:
    """Return what ``from module import *`` binds, or None when the module cannot be imported."""
    try:
        content = vars(importlib.import_module(module))
    except (Exception, SystemExit):  # whatever the module does, the cell will meet it again
        return None
    return set(content.get("__all__", (name for name in content if not name.startswith("_"))))
