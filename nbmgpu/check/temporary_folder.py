"""A folder for the temporary files of the check, and of all processes that it starts."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def use_temporary_folder() -> Iterator[None]:
    """Let temporary files be in a folder that is removed after the ``with`` block.

    torchrun, trainers and libraries that are killed, or never remove theirs, leave files.
    """
    before, variable = tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="nbmgpu-check-", ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = before
            if variable is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = variable
