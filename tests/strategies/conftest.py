from collections.abc import Iterator

import pytest
from runs_folder import runs_folder  # noqa: F401

from nbmgpu.kernel import held_ranks


@pytest.fixture
def released() -> Iterator[None]:
    """End the ranks that a test has left."""
    yield
    if (held := held_ranks._held) is not None:
        held.end()
