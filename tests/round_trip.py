"""A round trip like that of a run: serialize in this process, run the cell in another one."""

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


def run_rank(
    bundle: str, result: str, cell: str, path: list[str], pipe: Any, is_exclusive: bool = False
) -> None:
    """Load the bundle, run the cell and save the result; reply with the traceback of an error."""
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
        lost = save_result(
            result, made, {}, received, namespace, is_exclusive=lambda nbytes: is_exclusive
        )
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
    """The namespace of a notebook, and runs; with ``is_exclusive``, ranks rewrite the bundle."""

    folder: Any
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    storages: list[Storage] = field(default_factory=list)
    is_exclusive: bool = True

    def cell(self, source: str) -> None:
        """Run a cell here."""
        exec(compile(source, "<notebook>", "exec"), self.namespace)

    def serialize(self, *names: str) -> Bundle:
        """Serialize ``names``, or all names."""
        names = names or tuple(n for n in self.namespace if not n.startswith("__"))
        return serialize({n: self.namespace[n] for n in names}, self.namespace, {})

    def write(self, bundle: Bundle) -> Storage:
        self.storages.append(bundle.allocate(self.folder))
        bundle.write(self.storages[-1])
        return self.storages[-1]

    def start(self, bundle_storage: Storage, cell: str) -> Rank:
        """Start a rank on ``cell``."""
        self.storages.append(allocate_storage(self.folder, f"result-{len(self.storages)}", 0))
        ours, theirs = RANKS.Pipe()
        args = (
            bundle_storage.path,
            self.storages[-1].path,
            cell,
            sys.path,
            theirs,
            self.is_exclusive,
        )
        process = RANKS.Process(target=run_rank, args=args)
        process.start()
        theirs.close()
        return Rank(process, ours, self.storages[-1])

    def mgpu(self, cell: str, *names: str) -> RestoredResult:
        """Run a cell in a rank and restore its result."""
        bundle = self.serialize(*names)
        rank = self.start(self.write(bundle), cell)
        rank.wait()
        returned = restore_result(rank.result.path, bundle)
        self.namespace.update(returned.values)
        return returned

    def __getitem__(self, name: str) -> Any:
        return self.namespace[name]
