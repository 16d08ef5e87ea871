"""Serializes what a cell reads in the kernel, and loads it in a rank."""

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
from nbmgpu.patches import PatchStack
from nbmgpu.system.gc_pause import gc_paused

from . import container
from .address_space import AddressSpace, BufferEntry, dump_table, load_table, map_regions
from .content_snapshots import snapshot_contents
from .device_memory import FreedMemory
from .held_objects import HeldObjects, by_key
from .library_overrides import overrides_in
from .memory_blocks import CPU, Block, BlockTable
from .notebook_types import is_by_value
from .pickle_errors import explain_pickle_error
from .pickler import BundlePickler, BundleUnpickler, HoldingPickler
from .storage import Storage, storage_pool
from .tensor_views import load_context

RECONSTRUCTION_ERRORS = (AttributeError, KeyError, RecursionError, TypeError)
"""Exceptions of user code that is called to unpickle objects without their history."""

OFTEN_OVERRIDDEN = ("torch", "torch.nn.functional")
"""Modules whose overrides are reported even if the cell does not read the module."""


@dataclass
class Bundle:
    """What the kernel has pickled for the ranks, and what it needs to restore results.

    Attributes:
        nbytes: size of the whole bundle in bytes, without a few for alignment.
        stream: the pickle stream.
        table: the memory blocks behind tensors and arrays.
        buffers: out-of-band buffers of other libraries.
        sizes: bytes that each name added; memory shared with an earlier name counts there.
        originals: the notebook's objects by memo index; keeps them alive until results are
            restored.
        namespace: the notebook's namespace.
        detached: names whose tensors are detached from an autograd graph, so that a backward pass
            in the cell ends there.
        values: the pickled values by name.
        header: small values for the rank itself, such as random states.
        overrides: functions that the notebook has set on classes or modules of libraries, which
            ranks do not have.
        number: of the bundle among those of the same ranks, from 1.
        modules: those that ranks import to load the values.
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
    number: int = 1
    modules: set[str] = field(default_factory=set)
    _storage: Storage | None = field(default=None, repr=False)

    def allocate(self, folder: Path) -> Storage:
        """Return storage in which the bundle fits; the caller releases it after the run.

        Raises:
            LaunchError: neither memory nor the disk has enough space.
        """
        return storage_pool.acquire(folder, "bundle", self.nbytes)

    def write(self, storage: Storage, owner: str = "") -> None:
        """Write the bundle for the run ``owner``, whose ranks may already be waiting for it."""
        try:
            write_container(storage.path, self.stream, self.table, self.buffers, storage, owner)
        except BaseException:  # an incomplete bundle is of no use
            with suppress(OSError):
                os.truncate(storage.path, 0)
            storage.close()
            raise
        self._storage = storage

    def free_device_memory(self) -> FreedMemory | None:
        """Free what the notebook has on devices, after ``write``; None if it has nothing there."""
        assert self._storage is not None
        if all(block.device == CPU for block in self.table.blocks):
            return None
        return FreedMemory(self.table.blocks, container.read(self._storage.path).blocks)

    def release(self) -> None:
        """Drop all references to objects of the notebook, as an exception may keep this alive."""
        self.stream = memoryview(b"")
        self.originals.clear()
        self.buffers.clear()
        self.values.clear()
        for block in self.table.blocks:
            block.owners = {}  # restored views keep their own memory alive

    def rewritten(self) -> list[memoryview]:
        """Return the blocks of the bundle, into some of which a rank has written its results.

        Raises:
            ValueError: no rank has, or not completely.
        """
        assert self._storage is not None
        return container.read(self._storage.path, container.REWRITTEN).blocks

    def accept_rewritten(self) -> None:
        """Let the next run reuse the memory of the bundle.

        ``untrack`` must have been called for every block that a rank has overwritten, so that the
        next run compares their bytes.
        """
        assert self._storage is not None
        container.mark_complete(self._storage.path)

    def untrack(self, block: Block) -> None:
        """Stop tracking writes to a block that is about to be overwritten: they are slower."""
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
    """Write what a pickler has produced to ``path``, reusing ``storage`` if it is in memory."""
    blocks = table.blocks
    spans = [(block.low, block.nbytes) for block in blocks]
    data = (block.bytes() for block in blocks)
    entries = dump_table(blocks, buffers)
    if storage is None or storage.fd is None:  # files on disk are not reused
        container.write(path, stream, entries, spans, data, owner=owner)
        return
    here = [(block.low, block.nbytes) for block in blocks if block.device == CPU]
    written = storage.tracker.written(here)  # before reading, so that later writes are tracked
    changed = container.write(path, stream, entries, spans, data, storage.layout, written, owner)
    for span in changed:  # likely to change again, and tracked writes are slower
        storage.tracker.untrack(span)


@gc_paused()
def serialize(
    names: Mapping[str, Any],
    namespace: dict[str, Any],
    header: Any,
    held: HeldObjects | None = None,
) -> Bundle:
    """Pickle ``names`` together, so that objects they share stay shared.

    Args:
        names: what the cell reads, by name.
        namespace: the notebook's namespace; functions that use it will use the rank's.
        header: small values for the rank itself, such as random states.
        held: what the ranks hold of earlier cells; None for new ranks.

    Raises:
        SerializationError: a value cannot be pickled.  The message has the variable, the path to
            the part that fails, its type, the reason and a suggestion.
    """
    held = held or HeldObjects(0, {})
    objects = held.objects
    pickler = HoldingPickler(namespace, objects) if objects else BundlePickler(namespace)
    pickler.dump((header, list(names), held.number, list(objects), held.names))
    sizes: dict[str, int] = {}
    detached: list[str] = []
    total, graphs = pickler.file.tell(), 0
    for name, value in names.items():
        try:
            pickler.dump(value)
        except Exception as error:
            raise explain_pickle_error(name, names, namespace, error) from None
        now = pickler.file.tell() + pickler.blocks.nbytes
        sizes[name], total = now - total, now
        if pickler.detached > graphs:
            detached.append(name)
            graphs = pickler.detached
    originals = dict(pickler.memo.copy().values()) | dict(objects)
    stream = pickler.file.getbuffer()
    table, buffers = pickler.blocks, pickler.buffers
    modules = [value for value in names.values() if isinstance(value, types.ModuleType)]
    modules += [sys.modules[name] for name in OFTEN_OVERRIDDEN if name in sys.modules]
    overrides = pickler.overrides.union(*map(overrides_in, modules))
    return Bundle(
        total, stream, table, buffers, sizes, originals, namespace, detached, dict(names), header,
        sorted(overrides), held.number + 1, pickler.modules,
    )  # fmt: skip


@dataclass
class ReceivedBundle:
    """A bundle that a rank has loaded.

    Attributes:
        header: small values for the rank itself.
        names: the names that were bound.
        memo_indices: memo indices, by which the kernel knows the objects, by ``id(object)``.
        objects: the objects by memo index; keeps them alive so that no id is reused.
        classes: attributes that classes of the notebook had when they were loaded, by ``id``.
        contents: items of long lists, dicts and sets when they were loaded, by memo index.
        roots: the values that were loaded under a name, whatever the name is bound to later.
        memory: where the blocks are in this process.
        path: the file.
        owner: the id of the run.
        number: of the bundle among those of this rank, from 1.
        held_names: names that only ranks have, of earlier cells.
    """

    header: Any
    names: list[str]
    memo_indices: dict[int, int]
    objects: dict[int, Any]
    classes: dict[int, dict[str, Any]]
    contents: dict[int, tuple[Any, ...]]
    roots: list[Any]
    memory: AddressSpace
    path: str
    owner: str
    number: int = 1
    held_names: tuple[str, ...] = ()


@gc_paused()
def load_bundle(
    path: str,
    namespace: dict[str, Any],
    device: str,
    owner: str = "",
    on_header: Callable[[Any], None] = lambda header: None,
    before: ReceivedBundle | None = None,
) -> ReceivedBundle:
    """Map the bundle at ``path`` when it is complete, and bind its names in ``namespace``.

    Args:
        path: the file, which may not be complete yet.
        namespace: the rank's namespace.
        device: where CUDA tensors are put, which may be ``"cpu"``.
        owner: the id of the run.
        on_header: called with the header before any value is loaded.
        before: the last bundle that this rank has loaded, whose objects it may hold.

    Raises:
        SerializationError: a value could be pickled but cannot be unpickled here.
        ValueError: the bundle is not for the run ``owner``.
        ModuleNotFoundError: the rank cannot import a module that the notebook has imported.
    """
    container.wait_until_complete(path, owner)
    opened = container.read(path)
    entries, buffers = load_table(opened.table)
    memory = map_regions(entries, opened.blocks, device)
    known = {} if before is None else by_key(before.objects, before.number)
    unpickler = BundleUnpickler(opened.stream, memory.buffers(buffers), known)
    with load_context(memory, namespace):
        header, names, number, keys, held_names = unpickler.load()
        on_header(header)
        for name in names:
            try:
                namespace[name] = unpickler.load()
            except RECONSTRUCTION_ERRORS as error:
                what = f"`{name}` cannot be unpickled in the ranks"
                why = f"{type(error).__name__}: {error}"
                raise SerializationError(
                    format_message(what, why, f"make `{name}` inside the cell")
                ) from error
    objects = dict(unpickler.memo.copy())
    _wrap_scheduled_optimizers(objects.values())
    contents = snapshot_contents(objects)
    held = {key: known[key] for key in keys}
    objects |= held
    memo_indices = {id(obj): index for index, obj in objects.items()}
    notebook_classes = (c for c in objects.values() if isinstance(c, type) and is_by_value(c))
    earlier = {} if before is None else before.classes
    classes = {id(kind): earlier.get(id(kind)) or dict(vars(kind)) for kind in notebook_classes}
    roots = [*(namespace[name] for name in names), *held.values()]
    return ReceivedBundle(
        header, names, memo_indices, objects, classes, contents, roots, memory, path, owner,
        number + 1, held_names,
    )  # fmt: skip


def _wrap_scheduled_optimizers(objects: Iterable[Any]) -> None:
    """Wrap ``step`` of the optimizers of unpickled LR schedulers, as the schedulers had done.

    A scheduler wraps its optimizer's ``step`` to record that it was called.  Pickling drops the
    wrapper, and then the first step of the scheduler warns that the optimizer has not stepped.
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
    bound = types.MethodType(noted, optimizer)
    PatchStack().replace("torch.optim.Optimizer.step", bound, optimizer)
