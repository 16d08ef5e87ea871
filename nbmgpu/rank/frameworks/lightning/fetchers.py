"""Patches of Lightning's data fetchers: a batch's step begins when the loop gets the batch.

Loaders without a length are read ahead.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from nbmgpu.rank.data.loader_events import EventQueue

from .library import LightningLibrary

if TYPE_CHECKING:
    from nbmgpu.rank.data.loader_events import LoaderEventDispatcher


class FetcherPatch:
    """Begins the steps of batches that the fetchers of one copy of Lightning have read ahead."""

    def __init__(self, events: LoaderEventDispatcher, library: LightningLibrary) -> None:
        """Patch ``library``; ``events`` begins the steps."""
        self.events = events
        self.library = library
        self.queues: weakref.WeakKeyDictionary[Any, deque[EventQueue]] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Install the patches, for the rest of this process."""
        fetchers, events, queues = self.library.of("loops.fetchers"), self.events, self.queues

        def fetch(original: Any) -> Any:
            def next_(fetcher: Any) -> Any:
                if not isinstance(fetcher, fetchers._PrefetchDataFetcher):
                    return original(fetcher)
                queue = EventQueue()
                queues.setdefault(fetcher, deque()).append(queue)
                with events.collect(queue):
                    return original(fetcher)

            return next_

        def get_prefetched(original: Any) -> Any:
            def next_(fetcher: Any) -> Any:
                batch = original(fetcher)
                queue = queues[fetcher].popleft()
                while queue:
                    events.dispatch_next_batch(queue)
                return batch

            return next_

        def reset(original: Any) -> Any:
            def reset_fetcher(fetcher: Any) -> None:
                self.end_passes(fetcher)
                original(fetcher)

            return reset_fetcher

        self.library.wrap("loops.fetchers._DataFetcher.__next__", fetch)
        self.library.wrap("loops.fetchers._DataFetcher.reset", reset)
        self.library.wrap("loops.fetchers._PrefetchDataFetcher.__next__", get_prefetched)

    def end_passes(self, fetcher: Any) -> None:
        """End the passes over loaders that ``fetcher`` has begun."""
        for queue in self.queues.pop(fetcher, ()):
            self.events.finish(queue)
