"""What is replaced in Python and small libraries, and their private names that are used."""

from __future__ import annotations

from typing import Any

from .build import added, patched, private
from .libraries import CLOUDPICKLE, NUMPY, PANDAS, PYTHON

FILES = "A file that the cell writes is written once, by rank 0; other ranks see their own writes."
SEEDS = "Generators without a seed get the same seed on every rank."
CLASS = "A class or object is pickled with its identity."


def _block_manager() -> Any:
    import pandas

    return pandas.Index([1])


ENTRIES = (
    *patched(PYTHON, "builtins", "open", FILES),
    *patched(PYTHON, "io", "open", FILES),
    *patched(
        PYTHON, "os",
        "remove unlink rmdir rename replace symlink link mkdir chmod utime stat listdir scandir",
        FILES,
    ),
    *patched(
        PYTHON, "os", "listxattr", FILES,
        without="other ranks copy a file without its extended attributes",
    ),
    *patched(PYTHON, "shutil", "rmtree", FILES),
    *patched(
        PYTHON, "tempfile", "_mkstemp_inner", "Names of temporary files are each rank's own."
    ),
    *patched(
        PYTHON, "tempfile", "tempdir",
        "Beside the ranks, one device has temporary files in the folder of the run.",
    ),
    *patched(PYTHON, "random.Random", "seed", SEEDS),
    *patched(PYTHON, "random", "seed", SEEDS),
    *private(
        PYTHON, "functools", "_lru_cache_wrapper", "Cached functions are pickled by their origin."
    ),
    *private(PYTHON, "copyreg", "_slotnames", "Attributes in __slots__ are pickled."),
    *private(
        PYTHON, "pickle", "_Unpickler",
        "What cannot be unpickled becomes a placeholder; only Python's unpickler can be changed.",
    ),
    *private(
        PYTHON, "multiprocessing.process.BaseProcess", "_config",
        "Sockets of child processes are put where they are cleaned up.",
    ),
    *private(CLOUDPICKLE, "cloudpickle.cloudpickle", "_class_setstate", CLASS),
    *private(CLOUDPICKLE, "cloudpickle.cloudpickle", "_should_pickle_by_reference", CLASS),
    *private(NUMPY, "numpy.memmap", "_mmap", "A memory-mapped array is sent as its file."),
    *private(
        PANDAS, "pandas.Index", "_references",
        "Views of one table keep sharing memory.", example=_block_manager,
    ),
    *added(
        PYTHON, "builtins.BaseException", "_render_traceback_",
        "IPython shows an error of nbmgpu's without frames; the method is documented.",
    ),
)  # fmt: skip
