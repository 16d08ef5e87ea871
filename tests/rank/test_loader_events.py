"""Events of a batch are applied when the batch is used, also through nested prefetchers."""

from nbmgpu.rank.data.current_batch import CurrentBatch
from nbmgpu.rank.data.loader_events import EventQueue, LoaderEvent, LoaderEventDispatcher


def dispatcher() -> LoaderEventDispatcher:
    return LoaderEventDispatcher(CurrentBatch(on_queued=lambda: None, on_ambiguous=lambda: None))


class Loader:
    """Yields numbers; emits an event as each begins and as the pass ends."""

    def __init__(self) -> None:
        self.events = dispatcher()
        self.applied: list[str] = []

    def emit(self, name: str, begins_step: bool) -> None:
        self.events.dispatch(LoaderEvent(lambda: self.applied.append(name), begins_step))

    def __iter__(self):
        try:
            for number in range(4):
                self.emit(str(number), begins_step=True)
                yield number
        finally:
            self.emit("end", begins_step=False)


def prefetch_one(loader):
    """Fetch one batch ahead, as accelerate does."""
    queue, batches = EventQueue(), iter(loader)
    events = loader.events
    with events.collect(queue):
        batch = next(batches)
    while batch is not None:
        with events.collect(queue):
            following = next(batches, None)
        events.dispatch_next_batch(queue)
        yield batch
        batch = following
    events.finish(queue)


def test_without_a_prefetcher_events_are_applied_immediately():
    loader = Loader()
    for number in loader:
        assert loader.applied[-1] == str(number)
        loader.events.current_batch.begin_backward()
    assert loader.applied == ["0", "1", "2", "3", "end"]


def test_a_batch_begins_when_it_is_yielded():
    loader = Loader()
    for number in prefetch_one(loader):
        assert loader.applied[-1] == str(number)
        loader.events.current_batch.begin_backward()
    assert loader.applied == ["0", "1", "2", "3", "end"]


def test_a_batch_begins_when_nested_prefetchers_yield_it():
    loader = Loader()
    events, queue = loader.events, EventQueue()
    batches = prefetch_one(loader)
    for _ in range(2):
        with events.collect(queue):
            group = [next(batches), next(batches)]
        for number in group:
            events.dispatch_next_batch(queue)
            assert loader.applied[-1] == str(number)
            events.current_batch.begin_backward()
    with events.collect(queue):
        assert next(batches, None) is None
    events.finish(queue)
    assert loader.applied[-1] == "end"


def test_discarded_and_unused_batches_never_begin():
    loader = Loader()
    events, queue = loader.events, EventQueue()
    with events.collect(queue):
        list(loader)
    events.discard_next_batch(queue)
    events.dispatch_next_batch(queue)
    events.current_batch.begin_backward()
    events.finish(queue)
    assert loader.applied == ["1", "end"]
