"""nbmgpu's own source against the patch table: nothing is patched or used privately outside it."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import nbmgpu
from nbmgpu.patches import TABLE

PACKAGE = Path(nbmgpu.__file__).parent

DOCUMENTED = {
    "sys._getframe",
    "sys._current_frames",
    "os._exit",
    "_replace",  # of named tuples
    "_fields",
    "_repr_html_",  # of IPython
}
"""Names with an underscore that are public all the same."""

SETTINGS = {
    "sys.stdout", "sys.stderr", "sys.unraisablehook", "torch.backends.cudnn",
    "torch.backends.cudnn.allow_tf32", "tempfile.tempdir",
    "sys.last_type", "sys.last_value", "sys.last_traceback",
}  # fmt: skip
"""Attributes of modules that are documented as settings."""

OWN_OBJECTS = {
    "_nbmgpu_reported", "_face",
}  # fmt: skip
"""Attributes that nbmgpu sets on objects of other libraries, and reads there."""

CLASS_CHANGES = {
    "strategies/fsdp": (
        "torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam",
        "torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup",
        "torch.nn.Module.__class__",
    ),
    "strategies/sharding": ("torch.nn.Parameter.__class__", "torch.Tensor.__class__"),
    "strategies/deepspeed": ("torch.nn.Parameter.__class__",),
    "serialization": (),  # of the notebook's objects, as the cell has left them
}
"""Packages that assign ``__class__``, and the entries of the table that declare it."""


@dataclasses.dataclass(frozen=True)
class Module:
    """A module of nbmgpu, and the libraries' names that it imports."""

    path: Path
    tree: ast.Module
    imported: dict[str, str]

    def at(self, node: ast.AST) -> str:
        return f"{self.path.relative_to(PACKAGE.parent)}:{node.lineno}"  # type: ignore[attr-defined]

    def dotted(self, node: ast.AST) -> str:
        """Return what an attribute chain names, beginning with the library; "" for others."""
        names = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.imported:
            return ""
        return ".".join([self.imported[node.id], *reversed(names)])


def modules() -> Iterator[Module]:
    """Yield nbmgpu's modules but the installer of patches."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parent.name not in ("patches", "table"):
            yield parsed(path, path.read_text())


def parsed(path: Path, source: str) -> Module:
    tree = ast.parse(source)
    imported = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            if not node.module.startswith("nbmgpu"):
                names = {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
                imported.update(names)
        elif isinstance(node, ast.Import):
            for a in node.names:
                if not a.name.startswith("nbmgpu"):
                    imported[a.asname or a.name.partition(".")[0]] = (
                        a.name if a.asname else a.name.partition(".")[0]
                    )
    return Module(path, tree, imported)


MODULES = list(modules())


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def covered(dotted: str) -> bool:
    """Whether the table declares a name, something below it, or what it is an attribute of."""
    if any(target == dotted or target.startswith(f"{dotted}.") for target in TABLE):
        return True
    owner, _, name = dotted.rpartition(".")
    return bool(owner) and not is_private(name) and covered_exactly(owner)


def covered_exactly(dotted: str) -> bool:
    owner, _, name = dotted.rpartition(".")
    return dotted in TABLE or (bool(owner) and not is_private(name) and covered_exactly(owner))


def private_imports(module: Module) -> Iterator[tuple[ast.AST, str]]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            for alias in node.names:
                yield node, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name


def test_imported_private_names_are_declared() -> None:
    undeclared = [
        f"{module.at(node)} imports {name}"
        for module in MODULES
        for node, name in private_imports(module)
        if not name.startswith(("nbmgpu", "__future__"))
        and any(map(is_private, name.split(".")))
        and name not in DOCUMENTED
        and not covered(name)
    ]
    assert not undeclared, report(undeclared)


def test_private_names_of_modules_and_classes_are_declared() -> None:
    undeclared = []
    for module in MODULES:
        inner = {node.value for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(module.tree):
            dotted = module.dotted(node) if isinstance(node, ast.Attribute) else ""
            if node in inner or not any(map(is_private, dotted.split("."))):
                continue
            if not covered(dotted) and dotted not in DOCUMENTED:
                undeclared.append(f"{module.at(node)} uses {dotted}")
    assert not undeclared, report(undeclared)


def own_names() -> set[str]:
    """Return the private names that nbmgpu itself defines."""
    found = set(OWN_OBJECTS)
    for module in MODULES:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                    found.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return found


def private_attributes(module: Module) -> Iterator[tuple[ast.AST, str]]:
    """Yield the private attributes that are read, written or asked for by ``getattr``."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and not module.dotted(node):
            yield node, node.attr
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "hasattr", "setattr", "delattr")
            and isinstance(node.args[1], ast.Constant)
        ):
            yield node, node.args[1].value


def test_private_attributes_of_objects_are_declared() -> None:
    """Names that nbmgpu defines for itself are not looked for in other objects."""
    declared = {entry.name for entry in TABLE.values()} | own_names() | DOCUMENTED
    undeclared = [
        f"{module.at(node)} uses .{name}"
        for module in MODULES
        for node, name in private_attributes(module)
        if is_private(name) and name not in declared
    ]
    assert not undeclared, report(undeclared)


def foreign_names(module: Module, function: ast.AST) -> dict[str, str]:
    """Return local names that a function binds to modules or classes of libraries."""
    found = {}
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        value, dotted = node.value, module.dotted(node.value)
        if isinstance(value, ast.Call):
            called = module.dotted(value.func)
            if called in ("importlib.import_module", "sys.modules.get"):
                dotted = "a module"
        elif isinstance(value, ast.Subscript) and module.dotted(value.value) == "sys.modules":
            dotted = "a module"
        elif isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
            dotted = dotted or (value.value.id in found and "a class") or ""
        for target in node.targets:
            if dotted and isinstance(target, ast.Name):
                found[target.id] = dotted
    return found


def assignments(module: Module) -> Iterator[tuple[ast.AST, str]]:
    """Yield what is assigned to attributes of libraries' modules and classes."""
    functions = [n for n in ast.walk(module.tree) if isinstance(n, ast.FunctionDef)]
    for scope in (module.tree, *functions):
        local = foreign_names(module, scope) if scope in functions else {}
        for node in ast.walk(scope):
            owner = None
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
                owner = node
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                owner = node.args[0] if node.func.id in ("setattr", "delattr") else None
            if owner is None:
                continue
            dotted = module.dotted(owner)
            root = owner.value if isinstance(owner, ast.Attribute) else owner
            if not dotted and isinstance(root, ast.Name) and root.id in local:
                dotted = f"{local[root.id]} ({ast.unparse(owner)})"
            if dotted:
                yield node, dotted


def test_libraries_are_patched_only_by_the_patch_stack() -> None:
    patched = [
        f"{module.at(node)} assigns {dotted}"
        for module in MODULES
        for node, dotted in assignments(module)
        if dotted not in SETTINGS
    ]
    assert not patched, report(sorted(set(patched)))


SAMPLE = """
import importlib, sys, torch, torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_iter

def patch():
    kind = importlib.import_module("transformers").Trainer
    module = sys.modules["datasets"]
    method = nn.Module
    torch.save = setattr(nn.Linear, "forward", None)
    module.load = method.to = None
    del nn.Module.forward
    dist.distributed_c10d._store = kind
"""


def test_the_scan_finds_undeclared_names() -> None:
    module = parsed(PACKAGE / "sample.py", SAMPLE)
    found = [name for _, name in assignments(module)]
    for name in (
        "torch.save",
        "torch.nn.Linear",
        "a module (module.load)",
        "torch.nn.Module (method.to)",
        "torch.nn.Module.forward",
        "torch.distributed.distributed_c10d._store",
    ):
        assert name in found
    assert "torch.utils._pytree.tree_iter" in {name for _, name in private_imports(module)}
    assert not covered("torch.utils._pytree.tree_iter")


def test_assignments_to_class_are_declared() -> None:
    changing = {
        str(module.path.parent.relative_to(PACKAGE))
        for module in MODULES
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "__class__"
        and isinstance(node.ctx, ast.Store)
    }
    assert changing == set(CLASS_CHANGES)
    assert {target for targets in CLASS_CHANGES.values() for target in targets} <= set(TABLE)


def test_patched_targets_in_the_source_are_declared() -> None:
    """Written out in full; others are checked when they are installed."""
    called = [
        (module, node, node.args[0].value)
        for module in MODULES
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("wrap", "replace", "add", "delete")
        and ast.unparse(node.func.value).endswith(("patches", "PatchStack()"))
        and node.args
        and isinstance(node.args[0], ast.Constant)
    ]
    assert called
    undeclared = [f"{m.at(node)} patches {name}" for m, node, name in called if name not in TABLE]
    assert not undeclared, report(undeclared)


def report(found: list[str]) -> str:
    return (
        "nbmgpu/patches/table does not declare this; patches go through PatchStack:\n"
        + "\n".join(found)
    )
