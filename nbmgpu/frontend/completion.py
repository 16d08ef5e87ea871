"""Tab on a ``%%mgpu`` or ``%mgpu`` line.

One matcher for IPython's completer.  On any other line it finds nothing, and the
usual completion is as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from IPython.core.completer import CompletionContext, SimpleMatcherResult, context_matcher

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

MATCHER_ID = "nbmgpu"


def register(shell: InteractiveShell) -> None:
    """Add the matcher to the shell's completer; a second time, replace it."""
    unregister(shell)

    def matcher(context: CompletionContext) -> SimpleMatcherResult:
        if "%mgpu" not in context.full_text:
            return {"completions": [], "suppress": False}
        from .completer import complete  # with every flag and strategy: when the first Tab asks

        hidden = shell.user_ns_hidden
        names = {k: v for k, v in shell.user_ns.items() if k not in hidden}
        return complete(context, names, shell.transform_cell)

    shell.Completer.custom_matchers.append(context_matcher(identifier=MATCHER_ID)(matcher))


def unregister(shell: InteractiveShell) -> None:
    """Take the matcher out again."""
    matchers = shell.Completer.custom_matchers
    matchers[:] = [m for m in matchers if getattr(m, "matcher_identifier", "") != MATCHER_ID]
