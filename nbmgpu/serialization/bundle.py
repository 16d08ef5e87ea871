"""The way there: from the notebook's namespace to a rank's."""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbmgpu.errors import SerializationError, format_message

from . import container
from .address_space import AddressSpace, BufferEntry, dump_table, load_table, map_regions
from .content_snapshots import snapshot_contents
from .gc_pause import gc_paused
from .library_overrides import overrides_in
from .memory_blocks import CPU, Block, BlockTable
from .pickle_errors import explain_pickle_error
from .pickler import BundlePickler, BundleUnpickler
from .reducers import is_by_value
from .storage import Storage, storage_pool
from .tensor_views import load_context

RECONSTRUCTION_ERRORS = (AttributeError, KeyError, RecursionError, TypeError)
"""What code of the notebook raises where its objects are made again without their history."""

OFTEN_OVERRIDDEN = ("torch", "torch.nn.functional")
"""Modules that what a cell reads may use, whatever it reads."""


@dataclass
class Bundle:
    """What was pickled in the kernel, and what results need to find their way back.

    ``sizes`` maps a name to the bytes that it added; what it shares with an earlier
    name counts there.  ``originals`` maps a memo index to the notebook's own object
    and keeps it alive until the results are in.  ``detached`` are the names whose
    tensors untrack an autograd graph behind: a backward pass in the cell ends at them.
    ``values`` are what was sent, by name, beside what the rank itself reads in ``header``;
    ``overrides`` name what the notebook has put into libraries, which ranks do without.  ``nbytes``
    are the bytes of the whole bundle, without a few for alignment.
    """

    nbytes: int
    stream: memoryview
    table: BlockTable
    buffers: list[BufferEntry]
    sizes: dict[str, int]
    originals: dict[int, Any]
    namespace: dict[str, Any] = field(repr=False)
    detached: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict, repr=False)
    header: Any = field(default=None, repr=False)
    overrides: list[str] = field(default_factory=list)
    _storage: Storage | None = field(default=None, repr=False)

    def allocate(self, folder: Path) -> Storage:
        """Return a storage where the bundle fits; the caller gives it back after the run.

        Raises:
            LaunchError: neither memory nor the disk has room.
        """
        return storage_pool.acquire(folder, "bundle", self.nbytes)

    def write(self, storage: Storage, owner: str = "") -> None:
        """Write the bundle for the run ``owner``, whose ranks may wait there already."""
        try:
            write_container(storage.path, self.stream, self.table, self.buffers, storage, owner)
        except BaseException:  # what is half written is nothing to keep, and takes no room
            with suppress(OSError):
                os.truncate(storage.path, 0)
            storage.close()
            raise
        self._storage = storage

    def release(self) -> None:
        """Keep nothing of the notebook's alive any more: an error that is storage may keep this."""
        self.stream = memoryview(b"")
        self.originals.clear()
        self.buffers.clear()
        self.values.clear()
        for block in self.table.blocks:
            block.owners = {}  # what came home as a view keeps its memory by the one it had

    def rewritten(self) -> list[memoryview]:
        """Return the blocks of the bundle, into some of which a rank has put its results.

        Raises:
            ValueError: none has, or not to the end.
        """
        assert self._storage is not None
        return container.read(self._storage.path, container.REWRITTEN).blocks

    def accept_rewritten(self) -> None:
        """Let the next run use the bundle's memory again.

        ``untrack`` has been called for every block that was written over: these are compared by
        their bytes then.
        """
        assert self._storage is not None
        container.mark_complete(self._storage.path)

    def untrack(self, block: Block) -> None:
        """WriteTracker a block no more, which is about to be written over: writing would take longer."""
        if self._storage is not None:
            self._storage.tracker.untrack((block.low, block.nbytes))


def write_container(
    path: str,
    stream: memoryview,
    table: BlockTable,
    buffers: Sequence[BufferEntry],
    storage: Storage | None = None,
    owner: str = "",
) -> None:
    """Write what a pickler has made to ``path``: that of ``storage``, or one to be used once."""
    blocks = table.blocks
    spans = [(block.low, block.nbytes) for block in blocks]
    data = (block.bytes() for block in blocks)
    entries = dump_table(blocks, buffers)
    if storage is None or storage.fd is None:  # what is on the disk is not storage
        container.write(path, stream, entries, spans, data, owner=owner)
        return
    here = [(block.low, block.nbytes) for block in blocks if block.device == CPU]
    written = storage.tracker.written(
        here
    )  # before they are read: what is written meanwhile counts
    changed = container.write(path, stream, entries, spans, data, storage.layout, written, owner)
    for span in changed:  # and so may change again, which takes longer while it is watched
        storage.tracker.untrack(span)


@gc_paused()
def serialize(names: Mapping[str, Any], namespace: dict[str, Any], header: Any) -> Bundle:
    """Pickle ``names`` together, so that what they share stays shared.

    Args:
        names: what the cell reads, by name.
        namespace: the notebook's namespace; its functions will share the rank's.
        header: small values for the rank itself, such as random states.

    Raises:
        SerializationError: a value cannot be pickled; the message has the variable, the
            path inside it, the type, the reason and the way out.
    """
    pickler = BundlePickler(namespace)
    pickler.dump((header, list(names)))
    sizes: dict[str, int] = {}
    detached: list[str] = []
    total, graphs = pickler.file.tell(), 0
    for name, value in names.items():
        try:
            pickler.dump(value)
        except Exception as error:
            raise explain_pickle_error(name, value, namespace, error) from None
        now = pickler.file.tell() + pickler.blocks.nbytes
        sizes[name], total = now - total, now
        if pickler.detached > graphs:
            detached.append(name)
            graphs = pickler.detached
    originals = dict(pickler.memo.copy().values())
    stream = pickler.file.getbuffer()
    table, buffers = pickler.blocks, pickler.buffers
    modules = [value for value in names.values() if isinstance(value, types.ModuleType)]
    modules += [sys.modules[name] for name in OFTEN_OVERRIDDEN if name in sys.modules]
    overrides = pickler.overrides.union(*map(overrides_in, modules))
    return Bundle(
        total, stream, table, buffers, sizes, originals, namespace, detached, dict(names), header,
        sorted(overrides),
    )  # fmt: skip


@dataclass
class ReceivedBundle:
    """A bundle in a rank: the header, and what is known of the objects that came.

    ``known`` maps ``id(object)`` to the memo index by which the kernel knows it;
    ``keep`` holds the objects, so that no id is given to another one.  ``classes``
    has the attributes that classes of the notebook came with, by ``id``, and ``contents`` the
    items of long lists, dicts and sets, by memo index; ``roots`` are the values that came under
    a name, whatever the name stands for later.
    """

    header: Any
    names: list[str]
    known: dict[int, int]
    keep: dict[int, Any]
    classes: dict[int, dict[str, Any]]
    contents: dict[int, tuple[Any, ...]]
    roots: list[Any]
    memory: AddressSpace
    path: str
    owner: str


@gc_paused()
def load_bundle(
    path: str,
    namespace: dict[str, Any],
    device: str,
    owner: str = "",
    on_header: Callable[[Any], None] = lambda header: None,
) -> ReceivedBundle:
    """Map the bundle at ``path``, as soon as it is whole, and bind its names in ``namespace``.

    CUDA tensors arrive on ``device``, or on the CPU when that is ``"cpu"``.  ``on_header`` is given
    the header before any value arrives.

    Raises:
        SerializationError: a value cannot be made again here, though it could be dumps.
        ValueError: it is not for the run ``owner``.
        ModuleNotFoundError: the rank cannot import what the notebook had imported.
    """
    container.wait_until_complete(path, owner)
    box = container.read(path)
    entries, buffers = load_table(box.table)
    memory = map_regions(entries, box.blocks, device)
    unpickler = BundleUnpickler(box.stream, memory.buffers(buffers))
    with load_context(memory, namespace):
        header, names = unpickler.load()
        on_header(header)
        for name in names:
            try:
                namespace[name] = unpickler.load()
            except RECONSTRUCTION_ERRORS as error:
                what = f"`{name}` cannot be made again in the ranks"
                why = f"{type(error).__name__}: {error}"
                raise SerializationError(
                    format_message(what, why, f"make `{name}` inside the cell")
                ) from error
    keep = dict(unpickler.memo.copy())
    _wrap_scheduled_optimizers(keep.values())
    known = {id(obj): index for index, obj in keep.items()}
    notebook_classes = (c for c in keep.values() if isinstance(c, type) and is_by_value(c))
    classes = {id(kind): dict(vars(kind)) for kind in notebook_classes}
    contents = snapshot_contents(keep)
    roots = [namespace[name] for name in names]
    return ReceivedBundle(header, names, known, keep, classes, contents, roots, memory, path, owner)


def _wrap_scheduled_optimizers(objects: Iterable[Any]) -> None:
    """Wrap the optimizers of pickled LR schedulers as the schedulers had wrapped them.

    A scheduler wraps its optimizer's ``step`` to see that it is called; pickling
    drops the wrapper, and the scheduler's first step would warn about its loss.
    """
    if "torch.optim.lr_scheduler" not in sys.modules:
        return
    from torch.optim.lr_scheduler import LRScheduler

    for obj in objects:
        optimizer = getattr(obj, "optimizer", None) if isinstance(obj, LRScheduler) else None
        if optimizer is not None and not hasattr(optimizer.step, "_wrapped_by_lr_sched"):
            _wrap_step(optimizer)


def _wrap_step(optimizer: Any) -> None:
    step = optimizer.step.__func__

    @functools.wraps(step)
    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._opt_called = True
        return step(self, *args, **kwargs)

    noted._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = types.MethodType(noted, optimizer)
