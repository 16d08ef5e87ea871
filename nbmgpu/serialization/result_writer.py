"""The way back: from a rank's namespace into the notebook's own objects.

An object that came in the bundle is never sent as a copy.  A token stands for
it, the memo index by which the kernel knows it, and its new *state* follows
behind; the kernel puts that state into its own object.  So ``model`` stays the
same ``model``, whoever else holds it.  AddressSpace goes back only where its bytes
changed, and lands in the notebook's own memory.
"""

from __future__ import annotations

import bisect
import collections
import functools
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from . import container
from .address_space import BUNDLE_SPACE, MappedRegion
from .bundle import ReceivedBundle, write_container
from .content_snapshots import contents_unchanged
from .file_layout import LARGE
from .flat_encoding import PLAIN_TYPES, FlatStates
from .gc_pause import gc_paused
from .memory_blocks import CPU, Block, BlockTable, untyped_bytes
from .object_state import (
    VALUE_TYPES,
    State,
    drop_unpicklable,
    get_state,
    is_stateless,
    state_is_dict,
)
from .page_changes import is_unmodified
from .pickle_errors import find_unpicklable, path_to, reason_of
from .pickler import BundlePickler
from .threaded_copy import same_bytes


class _ReceivedBlock(Block):
    """A block that came with the bundle; its addresses count from its own first byte."""

    def __init__(self, number: int, region: MappedRegion, before: memoryview) -> None:
        super().__init__(f"{BUNDLE_SPACE} {number}", region.device, 0, before.nbytes, {})
        self.number = number
        self.region = region
        self.before = before
        self._changed: bool | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that go back: all or, when they are as they came, none."""
        if self._changed is None:
            large = self.device == CPU and self.high >= LARGE  # small ones are compared at once
            mine = large and is_unmodified(self.region.raw)
            self._changed = not (mine or same_bytes(self.now(), self.before))
        return self.high if self._changed and not self.in_bundle else 0

    def bytes(self) -> memoryview:
        return self.now() if self.nbytes else memoryview(b"")

    def now(self) -> memoryview:
        """Return all of its bytes as they are."""
        if self.device == CPU:
            return self.region.raw
        return memoryview(untyped_bytes(self.region.storage(0, 0, 1)[0]).cpu().numpy())


class _ReceivedTable(BlockTable):
    """Blocks that recognise the memory that came with a bundle."""

    def __init__(self, received: ReceivedBundle) -> None:
        super().__init__()
        before = container.read(received.path).blocks
        numbered = enumerate(zip(received.memory.regions, before, strict=True))
        self._received = [_ReceivedBlock(i, region, raw) for i, (region, raw) in numbered]
        spans = ((block.region.span(), block) for block in self._received)
        self._spans = sorted((s for s in spans), key=lambda entry: entry[0])
        self._starts = [span[:2] for span, _ in self._spans]
        self._used: dict[str, _ReceivedBlock] = {}

    @property
    def blocks(self) -> list[Block]:
        return [*super().blocks, *self._used.values()]

    def add(self, device: str, low: int, high: int, owner: Any) -> tuple[str, int]:
        at = bisect.bisect_right(self._starts, (device, low)) - 1
        if at >= 0:
            (where, start, end), block = self._spans[at]
            if where == device and high <= end and end - start == block.high:
                self._used[block.space] = block
                return block.space, low - start
        return super().add(device, low, high, owner)

    def forget(self) -> None:
        """Start again, but remember which blocks have changed."""
        self._merged, self._new = [], []
        self._used = {}


class _UnpicklableError(Exception):
    """Something cannot be pickled; all that can be done without it has been noted."""


@dataclass
class _ResultContents:
    """What is to be sent, and what turned out to be impossible.

    ``without`` holds, for the memo index of an object, the state that can be sent
    in place of its whole state.
    """

    values: dict[str, Any]
    header: Any
    received: ReceivedBundle
    namespace: dict[str, Any]
    kept: Collection[str] = ()
    lost: dict[str, str] = field(default_factory=dict)
    without: dict[int, State | None] = field(default_factory=dict)

    def pack(self) -> _ResultPickler:
        """Pickle all that can be pickled."""
        table = _ReceivedTable(self.received)
        while True:
            pickler = _ResultPickler(self, table)
            try:
                pickler.dump_all()
            except _UnpicklableError:
                table.forget()
            else:
                return pickler

    def state(self, index: int, obj: Any) -> State | None:
        """Return the state of an object that came, as far as it can be sent."""
        if index in self.without:
            return self.without[index]
        return get_state(obj, self.received.classes.get(id(obj)))

    def drop_value(self, name: str) -> None:
        """Note that the value of ``name`` cannot be pickled."""
        value = self.values.pop(name)
        path, unpicklable = find_unpicklable(name, value, self.probe)
        where = "" if path == name else f"`{path}`: "
        self.lost[name] = where + reason_of(self.probe(unpicklable) or PICKLES_ALONE)

    def drop_parts(self, index: int, obj: Any, state: State) -> None:
        """Note what of an object's state cannot be pickled."""
        path = path_to(obj, self.values)
        self.without[index], lost = drop_unpicklable(state, self.probe)
        for part, error in lost.items():
            self.lost[path + part] = reason_of(error)
        if self.without[index] is None:
            self.lost[path] = reason_of(self.probe(state) or PICKLES_ALONE)

    def probe(self, value: Any) -> Exception | None:
        """Return why ``value`` cannot be sent, or None."""
        try:
            _ResultPickler(self, self._table_of_probes).dump(value)
        except Exception as error:
            return error
        finally:
            self._table_of_probes.forget()
        return None

    @functools.cached_property
    def _table_of_probes(self) -> _ReceivedTable:
        return _ReceivedTable(self.received)  # one: each maps the bundle


PICKLES_ALONE = ValueError("it cannot be pickled together with the rest")


class _ResultPickler(BundlePickler):
    """Replaces objects that came in the bundle by tokens, and queues their states."""

    def __init__(self, outgoing: _ResultContents, table: BlockTable) -> None:
        super().__init__(outgoing.namespace, include_globals=False, blocks=table)
        self._outgoing = outgoing
        self._known = outgoing.received.known
        self._copied: set[int] = set()
        self._tokens: set[int] = set()
        self._queue: collections.deque[tuple[int, Any, State]] = collections.deque()
        self._dict_state_types: dict[int, tuple[type, bool]] = {}
        self._flat = FlatStates()

    def persistent_id(self, obj: Any) -> int | None:
        """Return the token of an object that came, None for others."""
        index = self._known.get(id(obj))
        if index is None or index in self._tokens:
            return index
        if index in self._copied or isinstance(obj, VALUE_TYPES):
            return None
        if self._is_unchanged(index, obj):
            return index
        kind = type(obj)
        if index not in self._outgoing.without and self._state_is_dict(kind):
            state: State | None = ("object", kind, dict(obj.__dict__), None, None)
            frozen = False
        else:
            frozen = kind is not dict and kind is not list and is_stateless(obj)
            state = None if frozen else self._outgoing.state(index, obj)
        if state is not None:
            self._queue.append((index, obj, state))
        elif not frozen and index not in self._outgoing.without:
            self._copied.add(index)
            return None
        self._tokens.add(index)
        return index

    def _is_unchanged(self, index: int, obj: Any) -> bool:
        """Tell whether a long list, dict or set need not go back; what it holds is met here."""
        before = self._outgoing.received.contents.get(index)
        if before is None or not contents_unchanged(obj, before):
            return False
        self._tokens.add(index)  # at once: it may hold itself
        told = {*map(type, before)} <= PLAIN_TYPES or all(map(self._is_reported, before))
        if not told:
            self._tokens.discard(index)
        return told

    def _is_reported(self, item: Any) -> bool:
        """Tell whether what becomes of ``item`` is told by itself, where it came with the rest."""
        if type(item) in PLAIN_TYPES:
            return True
        if type(item) is tuple:
            return all(map(self._is_reported, item))
        return self.persistent_id(item) is not None

    def _state_is_dict(self, kind: type) -> bool:
        """Tell whether objects of type ``kind`` are their ``__dict__``; ask once."""
        known = self._dict_state_types.get(id(kind))
        if known is None:  # by id: a type need not be hashable
            known = self._dict_state_types[id(kind)] = (
                kind,
                self.uses_default_pickling(kind) and state_is_dict(kind),
            )
        return known[1]

    def dump_all(self) -> None:
        """Write what came with its states, then what is new with the states that it adds.

        So the notebook has its own objects back even when something new cannot be read there.

        Raises:
            _UnpicklableError: something cannot be pickled; without it, another pickler may succeed.
        """
        out = self._outgoing
        for root in out.received.roots:  # also those whose name stands for something else now
            with suppress(Exception):  # whose name, or what holds it, will tell
                self.persistent_id(root)
        bound = {n: v for n, v in out.values.items() if n not in out.kept or self._is_copy(v)}
        came = {n: v for n, v in bound.items() if id(v) in self._known}
        new = {n: v for n, v in bound.items() if n not in came}
        self.dump((out.header, out.lost))
        for values in (came, new):
            self.dump(list(values))
            for name, value in values.items():
                try:
                    self.dump(value)
                except Exception:
                    out.drop_value(name)
                    raise _UnpicklableError from None
            self._dump_states()

    def _is_copy(self, value: Any) -> bool:
        """Tell whether ``value``, which came, goes back as a new object, or with others in it."""
        if type(value) in PLAIN_TYPES:
            return False
        try:
            return self.persistent_id(value) is None
        except Exception:
            return True

    def reducer_override(self, obj: Any) -> Any:
        """Take a model out of the wrapper that ties it to the ranks' process group."""
        if self.uses_default_pickling(type(obj)):
            return NotImplemented
        from torch.nn.parallel import DistributedDataParallel

        if isinstance(obj, DistributedDataParallel):
            return _same, (obj.module,)
        return super().reducer_override(obj)

    def _dump_states(self) -> None:
        out = self._outgoing
        while self._queue:
            index, obj, state = self._queue.popleft()
            try:
                if not self._flat.take(index, state, self.persistent_id):
                    self.dump((index, state))
            except Exception:
                if index in out.without:
                    raise
                out.drop_parts(index, obj, state)
                raise _UnpicklableError from None
        self.dump(self._flat.dumps())


def _same(value: Any) -> Any:
    return value


@gc_paused()
def save_result(
    path: str,
    values: dict[str, Any],
    header: Any,
    received: ReceivedBundle,
    namespace: dict[str, Any],
    kept: Collection[str] = (),
    is_exclusive: Callable[[int], bool] = lambda nbytes: False,
) -> dict[str, str]:
    """Write ``values`` by their names, and the states of all that came, to ``path``.

    Args:
        path: of a place that was made for it.
        values: what to bind in the notebook.
        header: anything that can be pickled; it is read first.
        received: what has come.
        namespace: the rank's own; functions whose globals it is will have the notebook's there.
        kept: names that stand for what came under them.  They are not bound anew: the notebook
            may have given them to something else meanwhile.
        is_exclusive: tells, of some bytes, whether nobody else reads the bundle any more: they go back in
            it then, which takes no new memory.

    Returns:
        What cannot be pickled, by name or path, with the reason; it is left out.
    """
    outgoing = _ResultContents(dict(values), header, received, namespace, kept)
    pickler = outgoing.pack()
    _rewrite_bundle(received, pickler.blocks.blocks, is_exclusive)
    write_container(path, pickler.file.getbuffer(), pickler.blocks, pickler.buffers)
    return outgoing.lost


def _rewrite_bundle(
    received: ReceivedBundle, blocks: Iterable[Block], is_exclusive: Callable[[int], bool]
) -> None:
    """Put what has changed of the notebook's memory into the bundle, if that may be done."""
    changed = [block for block in blocks if isinstance(block, _ReceivedBlock) and block.nbytes]
    nbytes = sum(block.nbytes for block in changed)
    if nbytes < LARGE or not container.can_rewrite(received.path, received.owner):
        return
    if not is_exclusive(nbytes):
        return
    data = ((block.number, block.now()) for block in changed)
    if container.rewrite(received.path, data, received.owner):
        for block in changed:
            block.in_bundle = True
