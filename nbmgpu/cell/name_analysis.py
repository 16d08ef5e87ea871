"""Finds which names code reads from the namespace it runs in, and which it binds there.

A name that is read where it is not definitely assigned (see ``nbmgpu.cell.control_flow``) must
exist before the code runs.
"""

# ruff: noqa: D102 - a visitor's methods are named after the nodes they visit

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from .control_flow import AssignedNames, ControlFlowVisitor
from .ipython_magics import Magic, identifiers_in, parse_magic
from .name_usage import Location, NameUsage, StringLiteral
from .scopes import LocalNames, Scope, all_parameters, imported_name, star_import_names
from .source import Fragment


class NameReader(ControlFlowVisitor):
    """Collects what code at the top level of a notebook reads and binds.

    Attributes:
        names: the names that the code read so far uses.
        module: the scope of module-level names.
    """

    def __init__(self, parse: Callable[[str], Fragment]) -> None:
        """Initialize the reader; ``parse`` parses the Python code in arguments of magics."""
        super().__init__()
        self.names = NameUsage()
        self.module = self._scope = Scope("module")
        self._parse = parse
        self._line_of: Callable[[int], int] = lambda line: line
        self._classes: AssignedNames = frozenset()  # being defined; their methods run later
        self._late_annotations = False

    def read(self, cell: Fragment) -> None:
        """Analyze a whole cell."""
        self._line_of = cell.line_of
        self._visit_all(cell.tree.body)

    def is_assigned(self, name: str, assigned: AssignedNames) -> bool:
        """Return whether a module-level name is definitely assigned."""
        return (self.module, name) in assigned

    # ------------------------------------------------------------- names

    def _location(self, node: Any) -> Location:
        return self._line_of(node.lineno), node.col_offset

    def _read(self, name: str, node: ast.AST, required: bool = True) -> None:
        name = self._scope.mangled(name)
        binding_scope = self._scope.binding_scope(name)
        assigned = self.assigned or frozenset()
        if binding_scope.kind not in ("module", "class") or (binding_scope, name) in assigned:
            return
        if self.is_assigned(name, assigned):
            return
        if name == "__class__" and self._scope is not self.module:
            return  # the implicit variable of methods
        # A class variable that is not bound shows the global one, if there is one.
        required = required and not self.guards and binding_scope is self.module
        self.names.add_read(name, self._location(node), required)

    def _bind(self, name: str | None, stays: bool = True, scope: Scope | None = None) -> None:
        if name is None:
            return
        scope = scope or self._scope
        name = scope.mangled(name)
        binding_scope = scope.binding_scope(name)
        if binding_scope is self.module:
            self.names.add_binding(name, stays)
        self._mark_assigned(binding_scope, name)

    def _mark_assigned(self, binding_scope: Scope, name: str) -> None:
        lasting = binding_scope.kind in ("module", "class") and name not in binding_scope.deleted
        if lasting and self.assigned is not None:
            self.assigned |= {(binding_scope, name)}

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self._bind(node.id)
            return
        self._read(node.id, node)
        if isinstance(node.ctx, ast.Del):
            name = self._scope.mangled(node.id)
            binding_scope = self._scope.binding_scope(name)
            if binding_scope is self.module:
                self.names.deletes[name] = None
            self._mark_assigned(binding_scope, name)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name):
            name = self._scope.mangled(node.value.id)
            self.names.attributes.setdefault(name, set()).add(node.attr)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and self.assigned is not None:
            literal = StringLiteral(node.value, self.assigned, self._location(node))
            self.names.strings.append(literal)

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
        self.names.star_imports[module] = None
        names = star_import_names(module)
        self.names.opaque |= names is None
        for name in names or ():
            self._bind(name, stays=False)  # the caller gets them through ``star_imports``

    # ------------------------------------------------------------- inner blocks

    @contextmanager
    def _inside(self, scope: Scope) -> Iterator[None]:
        before, self._scope = self._scope, scope
        yield
        self._scope = before

    def _inner(self, kind: Literal["class", "function"], owner: str = "") -> Scope:
        return Scope(kind, parent=self._scope, owner=owner or self._scope.owner)

    def _visit_function(
        self, args: list[ast.arg], body: Sequence[ast.AST], exist: AssignedNames = frozenset()
    ) -> None:
        """Visit a body that may run at any later time.

        Args:
            args: the parameters.
            body: the statements, or the expression of a lambda.
            exist: names that are bound by the time the body runs.
        """
        scope = LocalNames(self._inner("function")).read([*args, *body])
        before = self.assigned
        self.assigned = (before or frozenset()) | exist
        with self._inside(scope):
            self._visit_all(body)
        self.assigned = before

    def _visit_annotations(self, annotations: Iterable[ast.expr | None]) -> None:
        if not self._late_annotations:
            self._visit_all(annotations)

    def _type_scope(self, node: Any) -> Scope:
        """Return the scope of type parameters ``[T]``, or the current one; bounds are lazy."""
        params = getattr(node, "type_params", None)
        if not params:
            return self._scope
        owner = node.name if isinstance(node, ast.ClassDef) else self._scope.owner
        scope = Scope("type", parent=self._scope, owner=owner)
        scope.locals |= {scope.mangled(param.name) for param in params}
        with self._inside(scope), self._guarded():
            self._visit_optional(params)
        return scope

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        args = all_parameters(node.args)
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
        self._visit_function(all_parameters(node.args), [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_all(node.decorator_list)
        name = self._scope.mangled(node.name)
        classes = self._classes
        with self._inside(self._type_scope(node)):
            self._visit_all([*node.bases, *node.keywords])
            scope = LocalNames(self._inner("class", owner=node.name)).read(node.body)
            self._classes |= {(self._scope.binding_scope(name), name)}
            with self._inside(scope):
                for given in ("__module__", "__qualname__"):
                    scope.locals.add(given)
                    self._mark_assigned(scope, given)
                self._visit_all(node.body)
            self._classes = classes
        self._bind(node.name)

    def visit_TypeAlias(self, node: Any) -> None:
        self._bind(node.name.id)
        with self._inside(self._type_scope(node)), self._guarded():
            self._visit_optional([node.value])  # evaluated lazily

    def _visit_comprehension(self, node: Any) -> None:
        first = node.generators[0]
        self.visit(first.iter)  # evaluated in the enclosing scope
        scope = Scope("comprehension", parent=self._scope, owner=self._scope.owner)
        for generator in node.generators:
            LocalNames(scope).read([generator.target])
        before = self.assigned
        with self._inside(scope):
            for generator in node.generators:
                if generator is not first:
                    self.visit(generator.iter)
                self._visit_all([generator.target, *generator.ifs])
            keyed = isinstance(node, ast.DictComp)
            self._visit_all([node.key, node.value] if keyed else [node.elt])
        self.assigned = before

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension

    # ------------------------------------------------------------- calls

    def visit_Call(self, node: ast.Call) -> None:
        if self._visit_magic(node):
            return
        self.generic_visit(node)
        match node.func:
            case ast.Name("vars" | "dir") if not node.args:
                self.names.opaque = self.names.enumerates_names = True
            case ast.Name("globals" | "locals"):
                self.names.enumerates_names = True
            case ast.Attribute(
                attr="query" | "eval"
            ):  # pandas looks up @name in the caller's variables
                for part in ast.walk(node):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        for name in re.findall(r"@([^\W\d]\w*)", part.value):
                            self._read(name, part, required=False)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        before = self.names.enumerates_names
        self.generic_visit(node)
        match node:
            case ast.Subscript(value=ast.Call(func=ast.Name()), slice=ast.Constant()):
                self.names.enumerates_names = before  # globals()["x"] reads one name

    def _visit_magic(self, node: ast.Call) -> bool:
        magic = parse_magic(node)
        if magic is None:
            return False
        optional_reads = magic.optional_reads
        if magic.code.strip():
            try:
                self._visit_fragment(magic, node)
            except SyntaxError:
                if magic.whole_cell:
                    raise
                optional_reads = identifiers_in(
                    magic.code
                )  # possibly an unknown option of the magic
        for name in optional_reads:
            self._read(name, node, required=False)
        for name in magic.binds:
            self._bind(name, scope=self.module)
        self.names.opaque |= magic.opaque
        return True

    def _visit_fragment(self, magic: Magic, node: ast.Call) -> None:
        """Visit code that a magic executes; it assigns nothing, as some magics catch exceptions."""
        fragment = self._parse(magic.code)
        before, line = (self.assigned, self._line_of), self._line_of(node.lineno)
        self._line_of = fragment.line_of if magic.whole_cell else lambda _: line
        if magic.isolated:
            self._visit_function([], fragment.tree.body)
        else:
            self._visit_all(fragment.tree.body)
        self.assigned, self._line_of = before
