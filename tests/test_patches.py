"""The patch table against the installed libraries, and the stack that installs patches."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import warnings
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

LIBRARIES = sorted({entry.library.name for entry in TABLE.values()})


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


def test_entries_have_a_reason_of_one_sentence() -> None:
    for entry in TABLE.values():
        assert entry.why.endswith("."), entry.target
        assert not entry.without.endswith("."), entry.target


def test_the_error_for_a_moved_target_has_its_consequence() -> None:
    gone = PatchTarget("torch.nowhere.at_all", "It is needed.", TORCH, Kind.PATCHED)
    assert not lookup.exists(gone)
    assert gone.missing_text("9.9") == (
        "torch 9.9 has no torch.nowhere.at_all, which nbmgpu uses: It is needed. Without it, cells "
        f"under %%mgpu cannot run. It was tested with {TORCH.tested}."
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
def test_patches_of_inherited_methods_are_removed() -> None:
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
def test_functions_are_replaced_in_every_module_that_imported_them() -> None:
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
def test_a_missing_required_target_raises_an_error_with_a_remedy() -> None:
    with pytest.raises(LibraryError) as caught:
        PatchStack().replace(f"{__name__}.Base.gone", None)
    text = str(caught.value)
    assert f"has no {__name__}.Base.gone, which nbmgpu needs: A test patches it." in text
    assert "nbmgpu was tested with python 3.11." in text


def test_a_missing_optional_target_disables_its_feature(monkeypatch: pytest.MonkeyPatch) -> None:
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
        run = nbmgpu.run("1 + 1", {"__name__": "__main__"}, gpus=2, cpu=True)
        texts.append(run.view.notices.get("library-version"))
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


def test_info_accepts_only_the_patches_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "patch_report", lambda: "the table")
    commands.info("--patches")
    assert capsys.readouterr().out == "the table\n"
    with pytest.raises(OptionError, match="%mgpu info has no option --patch"):
        commands.info("--patch")


@pytest.mark.slow
def test_the_report_is_computed_in_another_process() -> None:
    text = patch_report()
    assert text.startswith(LEGEND)
    for library in LIBRARIES:
        assert f"\n{library or 'python'}  tested with: " in text
    assert "  missing  " not in text


def test_the_table_imports_no_library() -> None:
    code = "import sys, nbmgpu.patches; print({'torch', 'numpy', 'IPython'} & set(sys.modules))"
    done = subprocess.check_output([sys.executable, "-c", code], text=True, env=dict(os.environ))
    assert done.strip() == "set()"
