"""What IPython's magics and shell lines do with names.

IPython turns ``%time f(x)`` into ``get_ipython().run_line_magic('time', 'f(x)')`` and
``!ls {folder}`` into ``get_ipython().system('ls {folder}')``.  ``magic_of`` recognises such a
call and says what it means for the notebook's namespace.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

PYTHON = {
    "time": r"--no-raise-error(?:\s+|$)",
    "timeit": r"-[nrpv]\s*\S+(?:\s+|$)|-[tcqo]+(?:\s+|$)",
    "prun": r"-[DlsT]\s*\S+(?:\s+|$)|-[rq]+(?:\s+|$)",
}
"""Magics whose argument is Python, with a pattern of their options."""

TEXT = frozenset({
    "alias", "autoreload", "bash", "bookmark", "cat", "cd", "colors", "conda", "config", "cp",
    "dhist", "dirs", "env", "file", "hist", "history", "html", "HTML", "javascript", "js",
    "latex", "ldir", "ll", "ls", "lsmagic", "mamba", "markdown", "matplotlib", "micromamba",
    "mkdir", "mv", "pdb", "perl", "pip", "popd", "precision", "pprint", "pushd", "pwd", "pypy",
    "python", "python2", "python3", "quickref", "reload_ext", "rm", "rmdir", "ruby", "script",
    "set_env", "sh", "svg", "SVG", "sx", "system", "tb", "uv", "who", "who_ls", "whos",
    "writefile", "xmode", "!",
})  # fmt: skip
"""Magics whose argument is plain text in which IPython fills in ``{x}`` and ``$x``."""

INSPECTION = frozenset({"page", "pdef", "pdoc", "pfile", "pinfo", "pinfo2", "psearch", "psource"})
"""Magics that only look at the objects they are given."""


@dataclass(frozen=True)
class Magic:
    """What one magic or shell line does.

    ``code`` is Python that it runs in the notebook's namespace, in a function of its own
    when ``isolated``.  ``mentions`` are names it uses if they exist, ``binds`` names it
    binds.  ``opaque`` means that it may bind names nobody can foresee.
    """

    code: str = ""
    isolated: bool = False
    whole_cell: bool = False
    mentions: tuple[str, ...] = ()
    binds: tuple[str, ...] = ()
    opaque: bool = False


def magic_of(node: ast.Call) -> Magic | None:
    """Return what a call means if it is one that IPython writes for a magic, else None."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Call(func=ast.Name("get_ipython")), attr=kind), args=args
        ):
            texts = [arg.value for arg in args if isinstance(arg, ast.Constant)]
        case _:
            return None
    match kind, texts:
        case "system" | "getoutput", [str(command)]:
            return Magic(mentions=interpolated(command))
        case "run_line_magic", [str(name), str(line)]:
            return _line_magic(name, line)
        case "run_cell_magic", [str(name), str(line), str(body)]:
            return _cell_magic(name, line, body)
    return None


def _line_magic(name: str, line: str) -> Magic:
    if name in PYTHON:
        return Magic(code=_without_options(name, line), isolated=name == "timeit")
    if name in TEXT:
        return Magic(mentions=interpolated(line))
    return Magic(mentions=words(line), opaque=name not in INSPECTION)


def _cell_magic(name: str, line: str, body: str) -> Magic:
    if name in PYTHON:
        code = f"{_without_options(name, line)}\n{body}"
        return Magic(code=code, isolated=name == "timeit", whole_cell=True)
    if name == "capture":
        output = [word for word in line.split() if not word.startswith("-")]
        return Magic(code=body, whole_cell=True, binds=tuple(output[:1]))
    if name in TEXT:  # IPython fills in the first line alone
        outputs = re.findall(r"--(?:out|err|proc)[\s=]+(\w+)", line)
        return Magic(mentions=interpolated(line), binds=tuple(outputs))
    return Magic(mentions=(*words(line), *(names_of(body) or words(body))), opaque=True)


def _without_options(name: str, line: str) -> str:
    return re.sub(rf"^(?:{PYTHON[name]})+", "", line.strip())


def interpolated(text: str) -> tuple[str, ...]:
    """Return the names that IPython would look up to fill in ``{x}`` and ``$x``."""
    from IPython.utils.text import DollarFormatter

    try:
        fields = list(DollarFormatter().parse(text))
    except ValueError:  # lone braces, as in awk: IPython then leaves the text as it is
        return ()
    return tuple(
        name
        for _, expression, layout, _ in fields
        if expression
        for name in (*names_of(expression), *interpolated(layout or ""))
    )


def names_of(expression: str) -> tuple[str, ...]:
    """Return the variables in a text that is Python, and nothing for any other text."""
    try:
        tree = ast.parse(expression.strip())
    except (SyntaxError, ValueError):
        return ()
    return tuple(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))


def words(text: str) -> tuple[str, ...]:
    """Return every word of a text that could be a variable."""
    return tuple(re.findall(r"(?<![\w.])[^\W\d]\w*", text))
