"""Writes an exported script, and the files that it loads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nbmgpu.errors import CellError, OptionError, format_message
from nbmgpu.formatting import format_bytes
from nbmgpu.system.ownership import require_own

from .main_module import classes_in_main
from .nbmgpu_script import nbmgpu_parts, nbmgpu_script_text
from .plain_script import parts_of
from .replaced_files import check_replaceable, with_checksum
from .request import ExportRequest
from .script import data_folder, files_of, script_text, torchrun_command


@dataclass(frozen=True)
class ExportedScript:
    """A script that was written.

    Attributes:
        path: the script.
        command: what runs it.
        files: the files that it loads.
        notes: where its numbers may differ from those of the notebook, as sentences.
    """

    path: Path
    command: str
    files: tuple[Path, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        """Return what to tell the user."""
        lines = [f"Wrote {self.path}. To run it: {self.command}"]
        if self.files:
            size = format_bytes(sum(path.stat().st_size for path in self.files))
            names = ", ".join(path.name for path in self.files)
            lines.append(f"It loads from {self.files[0].parent.name}/ ({size}): {names}")
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])


def write_script(request: ExportRequest, path: Path, with_nbmgpu: bool = False) -> ExportedScript:
    """Write the script of ``request`` to ``path``, and its files into a folder beside it.

    Args:
        request: what is exported.
        path: the script, which is replaced if it is an export that nobody has edited.
        with_nbmgpu: whether it calls nbmgpu instead of torch.

    Raises:
        OptionError: ``path`` is no Python file or in no folder, or it exists, or an option cannot
            be exported.
        CellError, StrategyError: the cell cannot be exported.
        OSError: a file cannot be written.
    """
    if path.suffix != ".py":
        what = f"A script is a Python file, and {path.name} is none"
        raise OptionError(format_message(what, instead=str(path.with_suffix(".py"))))
    check_folder(path)
    folder = path.with_name(data_folder(path.name))
    with classes_in_main(request.values):
        if with_nbmgpu:
            parts = nbmgpu_parts(request, path)
            text, command = nbmgpu_script_text(request, parts), f"python {path.name}"
        else:
            parts = parts_of(request, path)
            text, command = script_text(request, parts), torchrun_command(request, path.name)
        check_syntax(text)
        files = files_of(parts)
        check_replaceable(path, map(folder.joinpath, files))
        if files:
            folder.mkdir(mode=0o700, exist_ok=True)
            require_own(folder)
        for name, value in files.items():
            value.write(folder / name)
    path.write_text(with_checksum(text), encoding="utf-8")
    written = tuple(folder / name for name in files)
    return ExportedScript(path, command, written, tuple(parts.notes))


def check_folder(path: Path) -> None:
    """Check that the folder of a file to be written exists.

    Raises:
        OptionError: it does not.
    """
    folder = path.absolute().parent
    if not folder.is_dir():
        what = f"There is no folder {folder}, so {path.name} cannot be written there"
        raise OptionError(format_message(what, instead=f"{path.name}, or make the folder first"))


def check_syntax(text: str) -> None:
    """Check that a script is valid Python.

    Raises:
        CellError: it is not, as where a statement of the notebook cannot stand in a function.
    """
    try:
        compile(text, "<script>", "exec")
    except SyntaxError as error:
        line = (error.text or "").strip()
        what = f"The script would not be valid Python, at `{line}`: {error.msg}"
        raise CellError(format_message(what, instead="--with-nbmgpu")) from None
