"""The patch table: against the installed libraries, and against nbmgpu's own source."""

from __future__ import annotations

import ast
import dataclasses
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import nbmgpu
from nbmgpu.errors import LibraryError, OptionError
from nbmgpu.frontend import commands
from nbmgpu.patches import (
    TABLE,
    Kind,
    PatchStack,
    explain_missing,
    lookup,
    on_missing,
    stack,
    versions,
)
from nbmgpu.patches.report import LEGEND, patch_report, table_text
from nbmgpu.patches.table.libraries import PYTHON, TORCH
from nbmgpu.patches.target import Library, PatchTarget, older
from nbmgpu.runs.run import list_runs

PACKAGE = Path(nbmgpu.__file__).parent
LIBRARIES = sorted({entry.library.name for entry in TABLE.values()})

DOCUMENTED = {
    "sys._getframe",
    "os._exit",
    "_replace",  # of named tuples
    "_fields",
    "_repr_html_",  # of IPython
}
"""Names with an underscore that are public all the same."""

SETTINGS = {
    "sys.stdout", "sys.stderr", "sys.unraisablehook", "torch.backends.cudnn",
}  # fmt: skip
"""Attributes of modules that are documented as settings."""

OWN_OBJECTS = {
    "_nbmgpu_reported", "_nbmgpu_function", "_nbmgpu_args", "_face",
}  # fmt: skip
"""Attributes that nbmgpu sets on objects of other libraries, and reads there."""

CLASS_CHANGES = {
    "strategies/fsdp/wrapper.py": (
        "torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam",
        "torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup",
        "torch.nn.Parameter.__class__",
        "torch.nn.Module.__class__",
    ),
    "strategies/fsdp/unshard.py": ("torch.nn.Parameter.__class__",),
    "strategies/fsdp/parameter_storage.py": ("torch.Tensor.__class__",),
    "strategies/deepspeed/engine_wrapper.py": ("torch.nn.Parameter.__class__",),
    "strategies/deepspeed/original_modules.py": ("torch.nn.Parameter.__class__",),
    "serialization/state_setters.py": (),  # of the notebook's objects, as the cell has left them
}
"""Modules that assign ``__class__``, and the entries of the table that declare it."""


# The table and the installed libraries


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_target_exists(library: str) -> None:
    entries = [entry for entry in TABLE.values() if entry.library.name == library]
    installed = entries[0].library.installed
    if not installed:
        pytest.skip(f"{library} is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        missing = [e for e in entries if e.is_for(installed) and not lookup.exists(e)]
    assert not missing, "\n".join(entry.missing_text(installed) for entry in missing)


def test_the_installed_torch_is_a_tested_one() -> None:
    assert TORCH.was_tested_with(TORCH.installed), (
        f"torch {TORCH.installed} is installed, and nbmgpu was tested with {TORCH.tested}. Run the "
        "whole suite with it, then raise `last` in nbmgpu/patches/table/libraries.py."
    )


def test_entries_say_why_in_one_sentence() -> None:
    for entry in TABLE.values():
        assert entry.why.endswith("."), entry.target
        assert not entry.without.endswith("."), entry.target


def test_a_moved_target_is_named_with_its_consequence() -> None:
    gone = PatchTarget("torch.nowhere.at_all", "It is needed.", TORCH, Kind.PATCHED)
    assert not lookup.exists(gone)
    assert gone.missing_text("9.9") == (
        "torch 9.9 has no torch.nowhere.at_all, which nbmgpu uses: It is needed. Without it, cells "
        "under %%mgpu cannot run. It was tested with torch 2.13."
    )


def test_versions_compare_by_major_and_minor() -> None:
    library = Library("x", "2.9", "2.13", required_for="")
    assert library.was_tested_with("2.10.1+cu128")
    assert library.was_tested_with("2.13.7")
    assert not library.was_tested_with("2.14.0.dev1")
    assert not library.was_tested_with("2.8")
    assert older("2.9", "2.13")
    assert not older("3", "2.13")


# Installing patches


class Base:
    """Has methods of every kind."""

    def method(self) -> str:
        return "original"

    @classmethod
    def of_class(cls) -> str:
        return cls.__name__


class Child(Base):
    """Inherits them."""


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> dict[str, PatchTarget]:
    """The table with entries for this module's classes."""
    names = ("Base.method", "Base.of_class", "Base.gone", "nowhere")
    entries = {f"{__name__}.{name}": entry(f"{__name__}.{name}") for name in names}
    for target, each in entries.items():
        monkeypatch.setitem(TABLE, target, each)
    return entries


def entry(target: str, **more: str) -> PatchTarget:
    return PatchTarget(target, "A test patches it.", PYTHON, Kind.PATCHED, **more)


@pytest.mark.usefixtures("declared")
def test_patches_are_removed_in_reverse_order() -> None:
    before = dict(vars(Base))
    with PatchStack() as patches:
        for number in (1, 2):
            patches.wrap(
                f"{__name__}.Base.method",
                lambda original, number=number: lambda self: f"{number} {original(self)}",
            )
        patches.replace(f"{__name__}.Base.of_class", classmethod(lambda cls: "patched"))
        assert (Base().method(), Child.of_class()) == ("2 1 original", "patched")
    assert dict(vars(Base)) == before


@pytest.mark.usefixtures("declared")
def test_inherited_methods_are_inherited_again() -> None:
    instance = Child()
    patches = PatchStack()
    patches.wrap(
        f"{__name__}.Base.method", lambda plain: lambda self: "child's " + plain(self), Child
    )
    patches.wrap(f"{__name__}.Base.method", lambda plain: lambda: "one " + plain(), instance)
    assert (instance.method(), Child().method()) == ("one child's original", "child's original")
    assert patches
    patches.remove()
    assert not patches
    assert "method" not in vars(Child)
    assert "method" not in vars(instance)


@pytest.mark.usefixtures("declared")
def test_functions_are_replaced_in_every_module_that_has_them() -> None:
    name = f"{__name__}.Base.method"
    holders = [SimpleNamespace(method=Base.method), SimpleNamespace(other=Base.method)]
    with PatchStack() as patches:
        patches.replace_in(name, "new", holders)
        assert (holders[0].method, holders[1].other) == ("new", Base.method)
    with PatchStack() as patches:
        patches.replace_in(name, "new", holders, any_name=True)
        assert (holders[0].method, holders[1].other) == ("new", "new")
    assert holders[0].method is holders[1].other is Base.method


def test_only_declared_targets_can_be_patched() -> None:
    with pytest.raises(LookupError, match=r"os\.getcwd is not declared in nbmgpu/patches/table"):
        PatchStack().replace("os.getcwd", None)


@pytest.mark.usefixtures("declared")
def test_a_missing_required_target_is_an_error_with_a_way_out() -> None:
    with pytest.raises(LibraryError) as caught:
        PatchStack().replace(f"{__name__}.Base.gone", None)
    text = str(caught.value)
    assert f"has no {__name__}.Base.gone, which nbmgpu needs: A test patches it." in text
    assert "nbmgpu was tested with python 3.11." in text


def test_a_missing_optional_target_turns_its_feature_off(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, str]] = []
    monkeypatch.setattr(stack, "_notice", None)
    on_missing(lambda topic, text: said.append((topic, text)))
    name = f"{__name__}.Base.gone"
    monkeypatch.setitem(TABLE, name, entry(name, without="nothing is tested"))
    assert not PatchStack().replace(name, None)
    ((topic, text),) = said
    assert topic == f"missing {name}"
    assert "Without it, nothing is tested." in text
    for more in ({"since": "99.0"}, {"gone": "3.0"}):  # no version has it that is installed here
        monkeypatch.setitem(TABLE, name, entry(name, without="nothing is tested", **more))
        assert not PatchStack().replace(name, None)
    assert len(said) == 1


def test_an_import_error_of_a_moved_name_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = PatchTarget("torch.utils._pytree.gone", "It is needed.", TORCH, Kind.PRIVATE)
    monkeypatch.setitem(TABLE, gone.target, gone)
    with pytest.raises(ImportError) as caught:
        exec("from torch.utils._pytree import gone")
    text = explain_missing(caught.value)
    assert "has no torch.utils._pytree.gone, which nbmgpu needs: It is needed." in text
    assert "Try: pip install 'torch==2.13.*'" in text
    assert explain_missing(AttributeError("no attribute 'x'", name="x")) == ""
    assert explain_missing(ValueError()) == ""


# Versions


OLD = dataclasses.replace(TORCH, first="1.0", last="1.13")


@pytest.fixture
def untested(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that the table does not know."""
    monkeypatch.setattr(versions, "TORCH", OLD)
    monkeypatch.setattr(versions, "_reported", False)


@pytest.mark.usefixtures("untested")
def test_an_untested_torch_is_reported_once_per_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    texts = []
    for _ in range(2):
        nbmgpu.run("1 + 1", {"__name__": "__main__"}, gpus=2, cpu=True)
        texts.append(next(iter(list_runs())).view.notices.get("library-version"))
    first, second = texts
    assert second is None
    assert f"torch {TORCH.installed} is not among the versions" in first.text
    assert "tested with (1.0 to 1.13)" in first.text
    assert "pip install 'torch==1.13.*'" in first.text


def test_a_tested_torch_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_reported", False)
    assert versions.untested_notice() == ""


# What %mgpu info --patches prints


def test_the_printed_table_has_reason_versions_and_state() -> None:
    gone = PatchTarget("os.gone", "It is needed.", PYTHON, Kind.PATCHED, without="nothing happens")
    text = table_text([TABLE["builtins.open"], TABLE["io.open"], gone])
    assert text.startswith(LEGEND)
    assert "python  tested with: 3.11  installed: 3.11" in text
    assert "  present  patched  builtins: open\n" in text
    assert TABLE["builtins.open"].why in text
    assert "  missing  patched  os: gone\n" in text
    assert "It is needed. Without it, nothing happens." in text


def test_info_takes_the_option_and_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "patch_report", lambda: "the table")
    commands.info("--patches")
    assert capsys.readouterr().out == "the table\n"
    with pytest.raises(OptionError, match="%mgpu info has no option --patch"):
        commands.info("--patch")


@pytest.mark.slow
def test_another_process_checks_the_libraries() -> None:
    text = patch_report()
    assert text.startswith(LEGEND)
    for library in LIBRARIES:
        assert f"\n{library or 'python'}  tested with: " in text
    assert "  missing  " not in text


# nbmgpu's own source


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


def test_private_names_that_are_imported_are_declared() -> None:
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


def test_libraries_are_patched_by_the_stack_alone() -> None:
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


def test_the_scan_finds_what_it_looks_for() -> None:
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


def test_changes_of_an_objects_class_are_declared() -> None:
    changing = {
        str(module.path.relative_to(PACKAGE))
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


def test_nothing_of_the_table_imports_a_library() -> None:
    import subprocess
    import sys

    code = "import sys, nbmgpu.patches; print({'torch', 'numpy', 'IPython'} & set(sys.modules))"
    done = subprocess.check_output([sys.executable, "-c", code], text=True, env=dict(os.environ))
    assert done.strip() == "set()"
