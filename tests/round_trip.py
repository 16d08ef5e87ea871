"""A round trip as a run makes it: the notebook ships, a process of its own runs the cell."""

import multiprocessing
import sys
import traceback
import types
from dataclasses import dataclass, field
from typing import Any

from nbmgpu.serialization import (
    Bundle,
    RestoredResult,
    load_bundle,
    restore_result,
    save_result,
    serialize,
)
from nbmgpu.serialization.storage import Storage, allocate_storage

# The processes are forked from a server that has never run a tensor operation.
RANKS = multiprocessing.get_context("forkserver")
RANKS.set_forkserver_preload(["torch", "numpy", "pandas", "nbmgpu.serialization"])


def live(
    bundle: str, result: str, cell: str, path: list[str], pipe: Any, alone: bool = False
) -> None:
    """Be a rank: load_bundle, run the cell, send back; answer with an error's traceback."""
    try:
        sys.path[:] = path
        multiprocessing.set_start_method("fork", force=True)  # of a loader's workers, as usual
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        namespace = main.__dict__
        received = load_bundle(bundle, namespace, "cpu")
        namespace["_received"] = received
        exec(compile(cell, "<cell>", "exec"), namespace)
        made = {name: value for name, value in namespace.items() if not name.startswith("_")}
        lost = save_result(result, made, {}, received, namespace, is_exclusive=lambda nbytes: alone)
        pipe.send((None, lost))
    except BaseException:
        pipe.send((traceback.format_exc(), {}))


@dataclass
class Rank:
    """A process that runs a cell."""

    process: Any
    pipe: Any
    result: Storage

    def wait(self) -> dict[str, str]:
        """Wait for the end; raise what the cell raised."""
        error, lost = self.pipe.recv()
        self.process.join()
        self.pipe.close()
        self.process.close()
        if error is not None:
            raise AssertionError(f"in the rank:\n{error}")
        return lost


@dataclass
class Notebook:
    """A namespace of a notebook, and its runs; a rank that is ``alone`` may use the bundle."""

    folder: Any
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    places: list[Storage] = field(default_factory=list)
    alone: bool = True

    def cell(self, source: str) -> None:
        """Run a cell here."""
        exec(compile(source, "<notebook>", "exec"), self.namespace)

    def serialize(self, *names: str) -> Bundle:
        """Pack ``names``, or all that there is."""
        names = names or tuple(n for n in self.namespace if not n.startswith("__"))
        return serialize({n: self.namespace[n] for n in names}, self.namespace, {})

    def write(self, bundle: Bundle) -> Storage:
        self.places.append(bundle.allocate(self.folder))
        bundle.write(self.places[-1])
        return self.places[-1]

    def start(self, bundle_storage: Storage, cell: str) -> Rank:
        """Start a rank on ``cell``."""
        self.places.append(allocate_storage(self.folder, f"result-{len(self.places)}", 0))
        ours, theirs = RANKS.Pipe()
        args = (bundle_storage.path, self.places[-1].path, cell, sys.path, theirs, self.alone)
        process = RANKS.Process(target=live, args=args)
        process.start()
        theirs.close()
        return Rank(process, ours, self.places[-1])

    def mgpu(self, cell: str, *names: str) -> RestoredResult:
        """Run a cell in a rank and take back what it made."""
        bundle = self.serialize(*names)
        rank = self.start(self.write(bundle), cell)
        rank.wait()
        returned = restore_result(rank.result.path, bundle)
        self.namespace.update(returned.values)
        return returned

    def __getitem__(self, name: str) -> Any:
        return self.namespace[name]
