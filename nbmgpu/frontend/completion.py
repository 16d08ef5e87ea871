"""Registers a matcher for ``%%mgpu`` and ``%mgpu`` lines with IPython's completer.

On other lines the matcher returns nothing, so their completion does not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from IPython.core import completer as ipython

if TYPE_CHECKING:
    from IPython.core.completer import CompletionContext, SimpleMatcherResult
    from IPython.core.interactiveshell import InteractiveShell

MATCHER_ID = "nbmgpu"


def register(shell: InteractiveShell) -> None:
    """Add the matcher to the shell's completer, in place of an earlier one.

    IPython before 8.6, as in Colab, has no such matchers.
    """
    if not hasattr(ipython, "context_matcher"):
        return
    unregister(shell)

    def matcher(context: CompletionContext) -> SimpleMatcherResult:
        if "%mgpu" not in context.full_text:
            return {"completions": [], "suppress": False}
        from .completer import complete  # imports all flags and strategies: only when needed

        hidden = shell.user_ns_hidden
        names = {k: v for k, v in shell.user_ns.items() if k not in hidden}
        return complete(context, names, shell.transform_cell)

    shell.Completer.custom_matchers.append(ipython.context_matcher(identifier=MATCHER_ID)(matcher))


def unregister(shell: InteractiveShell) -> None:
    """Remove the matcher."""
    matchers = getattr(shell.Completer, "custom_matchers", [])
    matchers[:] = [m for m in matchers if getattr(m, "matcher_identifier", "") != MATCHER_ID]
