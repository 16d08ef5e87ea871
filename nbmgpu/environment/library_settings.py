"""Settings of libraries that a notebook sets once, and that its cells rely on.

How NumPy, pandas and torch print, NumPy's error handling, matplotlib's rcParams, and the
configuration of scikit-learn.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import BuiltinMethodType
from typing import Any

Settings = dict[str, dict[str, Any]]
"""The settings of each library that is imported, by its name."""


def _numpy() -> dict[str, Any]:
    numpy = sys.modules["numpy"]
    printing = numpy.get_printoptions()
    if printing.get("formatter"):  # functions, which ranks cannot compare
        printing = {}
    return {"printing": printing, "errors": numpy.geterr()}


def _set_numpy(settings: dict[str, Any]) -> None:
    numpy = sys.modules["numpy"]
    numpy.set_printoptions(**settings["printing"])
    numpy.seterr(**settings["errors"])


def _torch() -> dict[str, Any]:
    return dict(vars(sys.modules["torch"]._tensor_str.PRINT_OPTS))


def _set_torch(settings: dict[str, Any]) -> None:
    sys.modules["torch"].set_printoptions(**settings)


def _matplotlib() -> dict[str, Any]:
    """Return the parameters that are not matplotlib's own; the backend belongs to a process."""
    matplotlib = sys.modules["matplotlib"]
    own = matplotlib.rcParamsDefault
    return {
        name: value for name, value in matplotlib.rcParams.items()
        if not name.startswith(("backend", "interactive")) and value != own.get(name)
    }  # fmt: skip


def _set_matplotlib(settings: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of parameters that are deprecated
        sys.modules["matplotlib"].rcParams.update(settings)


def _pandas() -> dict[str, Any]:
    """Return the options of ``pd.options.display``; of functions, those that format a number."""
    display = sys.modules["pandas"].options.display
    values = {name: getattr(display, name) for name in dir(display)}
    return {name: value for name, value in values.items() if _is_sent(value)}


def _is_sent(value: Any) -> bool:
    is_of_text = isinstance(value, BuiltinMethodType) and isinstance(value.__self__, str)
    return value is None or isinstance(value, bool | int | float | str) or is_of_text


def _set_pandas(settings: dict[str, Any]) -> None:
    display = sys.modules["pandas"].options.display
    for name, value in settings.items():
        if getattr(display, name) != value:  # setting one may do more than store it
            setattr(display, name, value)


def _sklearn() -> dict[str, Any]:
    return dict(sys.modules["sklearn"].get_config())


def _set_sklearn(settings: dict[str, Any]) -> None:
    sys.modules["sklearn"].set_config(**settings)


LIBRARIES: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[dict[str, Any]], None]]] = {
    "numpy": (_numpy, _set_numpy),
    "torch": (_torch, _set_torch),
    "matplotlib": (_matplotlib, _set_matplotlib),
    "pandas": (_pandas, _set_pandas),
    "sklearn": (_sklearn, _set_sklearn),
}
"""How the settings of a library are read and set."""


def capture() -> Settings:
    """Return the settings of the libraries that are imported."""
    return {name: read() for name, (read, _) in LIBRARIES.items() if name in sys.modules}


def apply(settings: Settings) -> None:
    """Apply settings captured in another process, of the libraries that are imported here."""
    for name, values in settings.items():
        if name in sys.modules:
            LIBRARIES[name][1](values)
