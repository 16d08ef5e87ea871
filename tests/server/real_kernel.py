"""Processes in place of kernels: they start a real run of two ranks, then block."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

from jupyter_server_process import Server

KERNEL = """
import sys, nbmgpu
run = nbmgpu.run(sys.argv[1], {}, gpus=2, cpu=True, background=True)
print(run.id, flush=True)
while True:  # blocks like a busy kernel
    pass
"""

CELL = """
import time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = torch.utils.data.DataLoader(data, batch_size=8)
for epoch in range(2000):
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
    print("epoch", epoch, flush=True)
"""
"""A training loop that does not finish during a test."""

CELL_IGNORING_INTERRUPT = """
import time, nbmgpu
print("started", flush=True)
while True:
    try:
        time.sleep(1)
    except KeyboardInterrupt:
        print("not yet", flush=True)
"""


@contextlib.contextmanager
def real_run(server: Server, cell: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Yield the id of a real run of ``cell``, and the process that is its kernel."""
    kernel = subprocess.Popen(
        [sys.executable, "-c", KERNEL, cell],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"NBMGPU_RUNS": str(server.runs)},
        start_new_session=True,
    )
    try:
        assert kernel.stdout is not None
        name = kernel.stdout.readline().strip()
        assert name, kernel.wait(5)
        yield name, kernel
    finally:
        with contextlib.suppress(ProcessLookupError):
            kernel.send_signal(signal.SIGKILL)
        kernel.wait(10)
        kernel.stdout.close()
