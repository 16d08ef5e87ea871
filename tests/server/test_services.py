"""Actions do not wait for threads that read."""

import asyncio
import threading

from nbmgpu.server.services import THREADS, Services


def test_an_action_runs_while_all_reader_threads_are_busy():
    async def clicked() -> str:
        services, read = Services(), threading.Event()
        readers = [
            asyncio.ensure_future(services.run_in_thread(read.wait, 20)) for _ in range(THREADS)
        ]
        try:
            return await asyncio.wait_for(services.run_action(lambda: "stopped"), 5)
        finally:
            read.set()
            await asyncio.gather(*readers)
            services.close()

    assert asyncio.run(clicked()) == "stopped"
