"""What a session of tests has started ends with it, however that ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from several_nodes import wait

SESSION = """
import subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from session_guard import guard_session
guard_session()
daemon = "import subprocess; subprocess.run(['sleep', '100'], start_new_session=True)"
process = subprocess.Popen([sys.executable, "-c", daemon], start_new_session=True)
print(process.pid, flush=True)
time.sleep(100)
"""


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_daemons_end_with_the_session(sig: signal.Signals) -> None:
    command = [sys.executable, "-c", SESSION, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout is not None
        daemon = psutil.Process(int(session.stdout.readline()))
        wait(daemon.children)
        (child,) = daemon.children()
        session.send_signal(sig)
    wait(lambda: not daemon.is_running() and not child.is_running())
