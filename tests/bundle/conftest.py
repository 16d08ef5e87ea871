"""A notebook to ship from."""

import sys
import types

import pytest
from round_trip import Notebook


@pytest.fixture
def notebook(tmp_path):
    """An empty notebook."""
    # Classes of the notebook are __main__'s; pytest's own is put back afterwards.
    before = sys.modules["__main__"]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    book = Notebook(tmp_path, main.__dict__)
    yield book
    sys.modules["__main__"] = before
    for place in book.places:
        place.close()
