"""Classes and functions of a notebook in the module by whose name a pickle refers to them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any


@contextmanager
def classes_in_main(values: Mapping[str, Any]) -> Iterator[None]:
    """Let the body pickle objects of the notebook's classes as a script unpickles them: by name.

    In the notebook itself they are there already.  Of a run that has kept its start, they are not.
    """
    main = vars(sys.modules["__main__"])
    own = {
        name: value
        for name, value in values.items()
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__"
    }
    before = {name: main[name] for name in own if name in main}
    main.update(own)
    try:
        yield
    finally:
        for name in own.keys() - before.keys():
            main.pop(name, None)
        main.update(before)
