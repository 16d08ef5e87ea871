"""Registers nbmgpu with IPython: magics, input transformations and Tab completion.

``%load_ext nbmgpu`` registers everything at once.  ``nbmgpu.frontend.dispatch``, which implements
the magics, is imported later: by ``nbmgpu.frontend.preimport`` when the kernel is idle, or by the
first magic that is called.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class

from nbmgpu.engines.registry import get_engine
from nbmgpu.environment import module_state

from . import completion, held_warning, preimport

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

AWAITED_CALLS = {
    "get_ipython().run_cell_magic('mgpu'": "await get_ipython().run_cell_magic('mgpu_awaited'",
    "get_ipython().run_line_magic('mgpu', 'attach ": (
        "await get_ipython().run_line_magic('mgpu_awaited', 'attach "
    ),
    "get_ipython().run_line_magic('mgpu', 'attach')": (
        "await get_ipython().run_line_magic('mgpu_awaited', 'attach')"
    ),
}
"""Magic calls in transformed cells, and the awaited calls that replace them."""

HELP_CALL = re.compile(
    r"get_ipython\(\)\.run_cell_magic\('mgpu', (?P<line>.*(?<![\w-])(?:--help|-h)\b.*), ''\)$"
)
"""A call of the cell magic for help, without a cell.  IPython rejects cell magics without one."""


def register(shell: InteractiveShell) -> None:
    """Add magics, Tab completion and input transformations to ``shell``; preload the engine."""
    shell.register_magics(MgpuMagics)
    if help_magic not in shell.input_transformers_post:
        shell.input_transformers_post.append(help_magic)
    if hasattr(shell, "kernel") and await_magic not in shell.input_transformers_post:
        shell.input_transformers_post.append(await_magic)
    completion.register(shell)
    shell.events.register("pre_run_cell", held_warning.warn)
    shell.events.register("post_run_cell", preload)
    get_engine().preload()
    preimport.load()


def unregister(shell: InteractiveShell) -> None:
    """Undo ``register``."""
    for transformer in (help_magic, await_magic):
        if transformer in shell.input_transformers_post:
            shell.input_transformers_post.remove(transformer)
    completion.unregister(shell)
    shell.events.unregister("pre_run_cell", held_warning.warn)
    shell.events.unregister("post_run_cell", preload)


def preload(*_: object) -> None:
    """Preload the modules that the last cell has imported for ranks, and those that runs need."""
    module_state.remember()
    get_engine().preload()
    preimport.load()


def help_magic(lines: list[str]) -> list[str]:
    """Turn ``%%mgpu --help`` without a cell body into ``%mgpu --help``."""
    return [
        HELP_CALL.sub(r"get_ipython().run_line_magic('mgpu', \g<line>)", line) for line in lines
    ]


def await_magic(lines: list[str]) -> list[str]:
    """Turn calls of the magics into awaited calls where awaiting is possible.

    It is not inside a magic that runs the rest of its cell itself, such as ``%%time``.
    """
    return lines if _inside_magic() else [_awaited(line) for line in lines]


def _awaited(line: str) -> str:
    if line.rstrip().endswith(", '')"):
        return line  # IPython rejects it, with the name that was typed, as it has no body
    for call, awaited in AWAITED_CALLS.items():
        if line.startswith(call):
            return awaited + line[len(call) :]
    return line


def _inside_magic() -> bool:
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_code.co_name in ("run_cell_magic", "run_line_magic"):
            return True
        frame = frame.f_back
    return False


@magics_class
class MgpuMagics(Magics):
    """The ``%%mgpu`` and ``%mgpu`` magics.

    In a kernel ``%%mgpu`` is awaited, so that the event loop stays free during a run and the
    panel's Stop button works.  Under another cell magic (``%%time``, ``%%capture``) and in a
    terminal the run blocks.  Ctrl-C works in both cases.
    """

    @property
    def _shell(self) -> InteractiveShell:
        assert self.shell is not None
        return self.shell

    @cell_magic
    def mgpu(self, line: str, cell: str) -> Any:
        """Run the cell on several ranks: ``%%mgpu --strategy ddp --gpus 2``.

        ``%%mgpu --help`` lists its flags; Tab completes them.
        """
        from . import dispatch

        return dispatch.run_cell(self._shell, line, cell)

    @cell_magic
    async def mgpu_awaited(self, line: str, cell: str) -> Any:
        """Run the cell on several ranks without blocking the kernel's event loop."""
        from . import dispatch

        return await dispatch.run_cell_awaited(self._shell, line, cell)

    @line_magic("mgpu")  # type: ignore[arg-type]
    def mgpu_line(self, line: str) -> Any:
        """Manage runs (runs, show, attach, stop, info) or choose a strategy (advise, pick).

        ``%mgpu --help`` describes the commands, and the flags of ``%%mgpu``.
        """
        from . import dispatch

        return dispatch.run_line(self._shell, line)

    @line_magic("mgpu_awaited")  # type: ignore[arg-type]
    async def mgpu_line_awaited(self, line: str) -> None:
        """Attach to a run without blocking the kernel's event loop."""
        from . import dispatch

        await dispatch.attach_awaited(self._shell, line)
