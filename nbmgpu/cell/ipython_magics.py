"""Which names IPython's magics and shell lines read and bind.

IPython transforms ``%time f(x)`` into ``get_ipython().run_line_magic('time', 'f(x)')`` and
``!ls {folder}`` into ``get_ipython().system('ls {folder}')``.  ``parse_magic`` recognizes such a
call and returns its effect on the notebook's namespace.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

PYTHON_MAGICS = {
    "time": r"--no-raise-error(?:\s+|$)",
    "timeit": r"-[nrpv]\s*\S+(?:\s+|$)|-[tcqo]+(?:\s+|$)",
    "prun": r"-[DlsT]\s*\S+(?:\s+|$)|-[rq]+(?:\s+|$)",
}
"""Magics whose argument is Python code, with a pattern that matches their options."""

TEXT_MAGICS = frozenset({
    "alias", "autoreload", "bash", "bookmark", "cat", "cd", "colors", "conda", "config", "cp",
    "dhist", "dirs", "env", "file", "hist", "history", "html", "HTML", "javascript", "js",
    "latex", "ldir", "ll", "ls", "lsmagic", "mamba", "markdown", "matplotlib", "micromamba",
    "mkdir", "mv", "pdb", "perl", "pip", "popd", "precision", "pprint", "pushd", "pwd", "pypy",
    "python", "python2", "python3", "quickref", "reload_ext", "rm", "rmdir", "ruby", "script",
    "set_env", "sh", "svg", "SVG", "sx", "system", "tb", "uv", "who", "who_ls", "whos",
    "writefile", "xmode", "!",
})  # fmt: skip
"""Magics whose argument is text in which IPython interpolates ``{x}`` and ``$x``."""

INSPECTION_MAGICS = frozenset(
    {"page", "pdef", "pdoc", "pfile", "pinfo", "pinfo2", "psearch", "psource"}
)
"""Magics that only inspect their arguments."""


@dataclass(frozen=True)
class Magic:
    """The effect of one magic or shell line on the namespace.

    Attributes:
        code: Python code that it executes in the notebook's namespace.
        isolated: whether the code runs in a function of its own.
        whole_cell: whether the code is the body of a cell magic.
        optional_reads: names that it reads if they exist.
        binds: names that it binds.
        opaque: whether it may bind names that the source does not show.
    """

    code: str = ""
    isolated: bool = False
    whole_cell: bool = False
    optional_reads: tuple[str, ...] = ()
    binds: tuple[str, ...] = ()
    opaque: bool = False


def parse_magic(node: ast.Call) -> Magic | None:
    """Return the magic if ``node`` is a call that IPython generates for one, else None."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Call(func=ast.Name("get_ipython")), attr=kind), args=args
        ):
            texts = [arg.value for arg in args if isinstance(arg, ast.Constant)]
        case _:
            return None
    match kind, texts:
        case "system" | "getoutput", [str(command)]:
            return Magic(optional_reads=interpolated_names(command))
        case "run_line_magic", [str(name), str(line)]:
            return _line_magic(name, line)
        case "run_cell_magic", [str(name), str(line), str(body)]:
            return _cell_magic(name, line, body)
    return None


def _line_magic(name: str, line: str) -> Magic:
    if name in PYTHON_MAGICS:
        return Magic(code=_without_options(name, line), isolated=name == "timeit")
    if name in TEXT_MAGICS:
        return Magic(optional_reads=interpolated_names(line))
    return Magic(optional_reads=identifiers_in(line), opaque=name not in INSPECTION_MAGICS)


def _cell_magic(name: str, line: str, body: str) -> Magic:
    if name in PYTHON_MAGICS:
        code = f"{_without_options(name, line)}\n{body}"
        return Magic(code=code, isolated=name == "timeit", whole_cell=True)
    if name == "capture":
        output = [word for word in line.split() if not word.startswith("-")]
        return Magic(code=body, whole_cell=True, binds=tuple(output[:1]))
    if name in TEXT_MAGICS:  # IPython interpolates only in the first line
        outputs = re.findall(r"--(?:out|err|proc)[\s=]+(\w+)", line)
        return Magic(optional_reads=interpolated_names(line), binds=tuple(outputs))
    return Magic(
        optional_reads=(
            *identifiers_in(line),
            *(names_in_expression(body) or identifiers_in(body)),
        ),
        opaque=True,
    )


def _without_options(name: str, line: str) -> str:
    return re.sub(rf"^(?:{PYTHON_MAGICS[name]})+", "", line.strip())


def interpolated_names(text: str) -> tuple[str, ...]:
    """Return the names that IPython looks up to interpolate ``{x}`` and ``$x``."""
    from IPython.utils.text import DollarFormatter

    try:
        fields = list(DollarFormatter().parse(text))
    except ValueError:  # unbalanced braces, as in awk: IPython leaves the text unchanged
        return ()
    return tuple(
        name
        for _, expression, layout, _ in fields
        if expression
        for name in (*names_in_expression(expression), *interpolated_names(layout or ""))
    )


def names_in_expression(expression: str) -> tuple[str, ...]:
    """Return the variables in an expression; empty if the text is not valid Python."""
    try:
        tree = ast.parse(expression.strip())
    except (SyntaxError, ValueError):
        return ()
    return tuple(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))


def identifiers_in(text: str) -> tuple[str, ...]:
    """Return every word of a text that could be a variable name."""
    return tuple(re.findall(r"(?<![\w.])[^\W\d]\w*", text))
