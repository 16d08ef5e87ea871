"""Serializes a rank's result so that it can be restored into the notebook's own objects.

An object that came with the bundle is never sent as a copy.  A token stands for it, the memo index
by which the kernel knows it, and its new *state* follows; the kernel applies that state to its own
object.  So ``model`` stays the same ``model``, whatever else refers to it.  Memory is sent back
only if its bytes changed, and is copied into the notebook's own memory.
"""

from __future__ import annotations

import collections
import functools
import pickle
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from nbmgpu.system.gc_pause import gc_paused

from . import container
from .bundle import ReceivedBundle, write_container
from .content_snapshots import contents_unchanged
from .file_layout import LARGE
from .flat_encoding import PLAIN_TYPES, FlatStates
from .held_objects import NOTHING_STAYS, STAYS, StayingObjects
from .memory_blocks import CPU, Block, BlockTable
from .object_state import (
    VALUE_TYPES,
    State,
    drop_unpicklable,
    get_state,
    is_stateless,
    state_is_dict,
)
from .pickle_errors import find_unpicklable, path_to, reason_of
from .pickler import BundlePickler
from .received_blocks import ReceivedBlock, ReceivedTable


class _UnpicklableError(Exception):
    """Something cannot be pickled; it has been recorded what to leave out instead."""


@dataclass
class _Result:
    """What is to be sent, and what turned out to be unpicklable.

    Attributes:
        values: what to bind in the notebook, by name.
        header: anything that can be pickled.
        received: the bundle of this rank.
        namespace: the rank's namespace.
        unchanged: names that are bound to what was loaded under them.
        staying: what is not sent, as the next cell goes on with it.
        lost: reasons why something cannot be pickled, by name or path.
        partial_states: states to send instead of the whole state, by memo index.
    """

    values: dict[str, Any]
    header: Any
    received: ReceivedBundle
    namespace: dict[str, Any]
    unchanged: Collection[str] = ()
    staying: StayingObjects = NOTHING_STAYS
    lost: dict[str, str] = field(default_factory=dict)
    partial_states: dict[int, State | None] = field(default_factory=dict)

    def pack(self) -> _ResultPickler:
        """Pickle everything that can be pickled."""
        table = ReceivedTable(self.received)
        while True:
            pickler = _ResultPickler(self, table)
            try:
                pickler.dump_all()
            except _UnpicklableError:
                table.forget()
            else:
                return pickler

    def state(self, index: int, obj: Any) -> State | None:
        """Return the state of an object that came with the bundle, as far as it can be sent."""
        if index in self.partial_states:
            return self.partial_states[index]
        return get_state(obj, self.received.classes.get(id(obj)))

    def drop_value(self, name: str) -> None:
        """Record that the value of ``name`` cannot be pickled."""
        value = self.values.pop(name)
        if value in self.staying:
            self.lost[name] = STAYS
            return
        path, unpicklable = find_unpicklable(name, value, self.probe, self.staying.__contains__)
        where = "" if path == name else f"`{path}`: "
        self.lost[name] = where + reason_of(self.probe(unpicklable) or PICKLES_ALONE)

    def drop_parts(self, index: int, obj: Any, state: State) -> None:
        """Record which parts of an object's state cannot be pickled."""
        path = path_to(obj, self.values)
        self.partial_states[index], lost = drop_unpicklable(state, self.probe)
        for part, error in lost.items():
            self.lost[path + part] = reason_of(error)
        if self.partial_states[index] is None:
            self.lost[path] = reason_of(self.probe(state) or PICKLES_ALONE)

    def probe(self, value: Any) -> Exception | None:
        """Return why ``value`` cannot be pickled, or None."""
        try:
            _ResultPickler(self, self._table_of_probes).dump(value)
        except Exception as error:
            return error
        finally:
            self._table_of_probes.forget()
        return None

    @functools.cached_property
    def _table_of_probes(self) -> ReceivedTable:
        return ReceivedTable(self.received)  # shared, because each one maps the bundle


PICKLES_ALONE = ValueError("it cannot be pickled together with the rest")


class _ResultPickler(BundlePickler):
    """Replaces objects that came with the bundle by tokens, and queues their states."""

    def __init__(self, result: _Result, table: BlockTable) -> None:
        super().__init__(result.namespace, include_globals=False, blocks=table)
        self._result = result
        self._staying = result.staying or None  # tested for each object
        self._memo_indices = result.received.memo_indices
        self._copied: set[int] = set()
        self._tokens: set[int] = set()
        self._queue: collections.deque[tuple[int, Any, State]] = collections.deque()
        self._dict_state_types: dict[int, tuple[type, bool]] = {}
        self._flat = FlatStates()

    def persistent_id(self, obj: Any) -> int | None:
        """Return the token of an object that came with the bundle, None for others."""
        index = self._memo_indices.get(id(obj))
        if index is not None and index in self._tokens:
            return index
        if self._staying is not None and obj in self._staying:
            if index is None:
                raise pickle.PicklingError(STAYS)
            return index
        if index is None:
            return None
        if index in self._copied or isinstance(obj, VALUE_TYPES):
            return None
        if self._is_unchanged(index, obj):
            return index
        kind = type(obj)
        if index not in self._result.partial_states and self._state_is_dict(kind):
            state: State | None = ("object", kind, dict(obj.__dict__), None, None)
            frozen = False
        else:
            frozen = kind is not dict and kind is not list and is_stateless(obj)
            state = None if frozen else self._result.state(index, obj)
        if state is not None:
            self._queue.append((index, obj, state))
        elif not frozen and index not in self._result.partial_states:
            self._copied.add(index)
            return None
        self._tokens.add(index)
        return index

    def _is_unchanged(self, index: int, obj: Any) -> bool:
        """Return whether a long list, dict or set need not be sent back.

        Also queues the states of its items.
        """
        before = self._result.received.contents.get(index)
        if before is None or not contents_unchanged(obj, before):
            return False
        self._tokens.add(index)  # before its items: it may contain itself
        reported = {*map(type, before)} <= PLAIN_TYPES or all(map(self._is_reported, before))
        if not reported:
            self._tokens.discard(index)
        return reported

    def _is_reported(self, item: Any) -> bool:
        """Return whether ``item`` needs no copy: it is plain, or sent by its own token."""
        if type(item) in PLAIN_TYPES:
            return True
        if type(item) is tuple:
            return all(map(self._is_reported, item))
        return self.persistent_id(item) is not None

    def _state_is_dict(self, kind: type) -> bool:
        """Return whether objects of type ``kind`` are their ``__dict__``; cached."""
        known = self._dict_state_types.get(id(kind))
        if known is None:  # by id, because a type may not be hashable
            known = self._dict_state_types[id(kind)] = (
                kind,
                self.uses_default_pickling(kind) and state_is_dict(kind),
            )
        return known[1]

    def dump_all(self) -> None:
        """Write loaded values with their states, then new values with the states that these add.

        In this order the notebook can restore its own objects even if a new value cannot be read
        there.

        Raises:
            _UnpicklableError: something cannot be pickled; another pickler may succeed without it.
        """
        result = self._result
        for root in result.received.roots:  # also those whose name was rebound
            with suppress(Exception):  # reported with its name or with what contains it
                self.persistent_id(root)
        bound = {
            n: v for n, v in result.values.items() if n not in result.unchanged or self._is_copy(v)
        }
        came = {n: v for n, v in bound.items() if id(v) in self._memo_indices}
        new = {n: v for n, v in bound.items() if n not in came}
        self.dump((result.header, result.lost))
        for values in (came, new):
            self.dump(list(values))
            for name, value in values.items():
                try:
                    self.dump(value)
                except Exception:
                    result.drop_value(name)
                    raise _UnpicklableError from None
            self._dump_states()

    def _is_copy(self, value: Any) -> bool:
        """Return whether a loaded value is sent as a new object, or contains one."""
        if type(value) in PLAIN_TYPES:
            return False
        try:
            return self.persistent_id(value) is None
        except Exception:
            return True

    def reducer_override(self, obj: Any) -> Any:
        """Unwrap a model from DistributedDataParallel, which holds the ranks' process group."""
        if self.uses_default_pickling(type(obj)):
            return NotImplemented
        from torch.nn.parallel import DistributedDataParallel

        if isinstance(obj, DistributedDataParallel):
            return _same, (obj.module,)
        return super().reducer_override(obj)

    def _dump_states(self) -> None:
        result = self._result
        while self._queue:
            index, obj, state = self._queue.popleft()
            try:
                if not self._flat.add(index, state, self.persistent_id):
                    self.dump((index, state))
            except Exception:
                if index in result.partial_states:
                    raise
                result.drop_parts(index, obj, state)
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
    unchanged: Collection[str] = (),
    is_exclusive: Callable[[int], bool] = lambda nbytes: False,
    staying: StayingObjects = NOTHING_STAYS,
) -> dict[str, str]:
    """Write ``values`` and the states of all objects that came with the bundle to ``path``.

    Args:
        path: storage that was allocated for the result.
        values: what to bind in the notebook.
        header: anything that can be pickled; it is read first.
        received: the bundle.
        namespace: the rank's namespace; functions that use it will use the notebook's.
        unchanged: names that are still bound to what was loaded under them.  They are not bound
            again, because the notebook may have rebound them meanwhile.
        is_exclusive: called with a number of bytes; returns whether no other process reads the
            bundle any more.  Then changed bytes are written into the bundle, which needs no new
            memory.
        staying: what is not sent, as the next cell goes on with it.

    Returns:
        What cannot be pickled, by name or path, with the reason; it is left out.
    """
    result = _Result(dict(values), header, received, namespace, unchanged, staying)
    pickler = result.pack()
    _rewrite_bundle(received, pickler.blocks.blocks, is_exclusive)
    write_container(path, pickler.file.getbuffer(), pickler.blocks, pickler.buffers)
    return result.lost


def _rewrite_bundle(
    received: ReceivedBundle, blocks: Iterable[Block], is_exclusive: Callable[[int], bool]
) -> None:
    """Write the changed bytes of the notebook's memory into the bundle, if that is allowed.

    What the notebook has on a GPU stays as it was sent: see ``device_memory``.
    """
    received_blocks = (block for block in blocks if isinstance(block, ReceivedBlock))
    changed = [b for b in received_blocks if b.nbytes and b.sent_from == CPU]
    nbytes = sum(block.nbytes for block in changed)
    if nbytes < LARGE or not container.can_rewrite(received.path, received.owner):
        return
    if not is_exclusive(nbytes):
        return
    data = ((block.number, block.now()) for block in changed)
    if container.rewrite(received.path, data, received.owner):
        for block in changed:
            block.in_bundle = True
