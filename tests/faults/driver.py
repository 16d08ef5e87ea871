"""Runs a cell, waits until the processes are in the phase of a fault, and lets it happen.

Phases are recognized by what the run writes into its folder.  Where a phase is too short, one
process is suspended in it that the fault does not hit, or the cell computes until it may go on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cases import HALF, LARGE, Case, number
from fault_notebook import HELD, TRAIN
from sessions import ServerSession, Session, children, state_of, wait_for

from nbmgpu.runs.checkpoint import CHECKPOINTS, DESCRIPTION
from nbmgpu.runs.folder import COLLECTING_FILE
from nbmgpu.runs.run import Run

PATIENCE = 90.0
"""Seconds to wait for a phase, and for the end of the cell: a new fork server may take a while."""

SUSPENDED = 1.0
"""Seconds for which a process is suspended."""


class MissedError(Exception):
    """The phase was over before it was seen."""


@dataclass
class Fault:
    """A fault in a session, while it happens.

    Attributes:
        session: where the cell runs.
        case: the fault.
        run: the run, once its folder exists.
        suspended: processes that are suspended so that the phase lasts.
    """

    session: Session
    case: Case
    run: Run | None = None
    suspended: list[int] = field(default_factory=list)

    def inject(self) -> dict[str, Any] | None:
        """Let the fault happen; return the notebook's answer, None if it has ended.

        Raises:
            MissedError: the phase was over too early.
            TimeoutError: the phase, or its end, was not seen in time.
        """
        session = self.session
        (session.folder / "go").unlink(missing_ok=True)
        (session.folder / "held").unlink(missing_ok=True)
        session.known = set(os.listdir(session.runs))
        try:
            if self.case.phase == "launch":
                self._suspend(session.server())
            session.send(self._request())
            getattr(self, f"_reach_{self.case.phase.replace('-', '_')}")()
            self._hit()
        finally:
            self.go_on()
        if self.case.ends_notebook:
            wait_for(lambda: not session.alive, PATIENCE, "the end of the notebook's process")
            wait_for(session.over, PATIENCE, "the end of its Jupyter server")
            return None
        return session.reply(PATIENCE)

    def _request(self) -> dict[str, Any]:
        role, phase = self.case.role, self.case.phase
        victim = int(role[-1]) if role.startswith("rank") else 0
        names: dict[str, str] = {}
        cell, options, size = TRAIN, {}, {}
        match phase:
            case "packing":
                names["packed"] = "Packed()"
                cell += "packed\n"
            case "launch" | "join":
                options = {"verify": 0}  # then all children of the launcher are ranks
            case "training":
                names["hold_at"] = str(HALF)
            case "all-reduce" | "barrier":
                names |= {"hold_at": str(HALF), "holding": f"({1 - victim},)"}
                names["in_barrier"] = str(phase == "barrier")
            case "checkpoint":
                options, size = {"checkpoint_every": "4steps"}, LARGE
            case "sending" | "write-back":
                names["returned"] = f"Returned({victim if phase == 'sending' else -1})"
                cell += "returned\n"
        return {"cell": cell, "options": options, "names": names, **size}

    def _reach_packing(self) -> None:
        self._wait((self.session.folder / "held").exists)

    def _reach_launch(self) -> None:
        self._follow_run()
        if self.case.role != "launcher":
            time.sleep(0.2)  # the request is in the pipe
            return
        server = self.session.server()
        before = set(children(server))
        self.go_on()
        launcher = self._wait(lambda: set(children(server)) - before, 0).pop()
        self._suspend(launcher)
        if children(launcher):
            raise MissedError("the launcher has ranks already")

    def _reach_join(self) -> None:
        self._follow_run()
        launcher = self._launcher()
        held = 0 if self.case.role == "rank 1" else 1
        ranks = self._wait(lambda: len(found := children(launcher)) > held and found, 0)
        self._suspend(sorted(ranks)[held])
        self._wait(lambda: self._state(1 - held) == "loading")
        time.sleep(0.5)
        assert self.run is not None
        self.run.refresh()
        if any(view.state == "running" for view in self.run.view.ranks):
            raise MissedError("the ranks have joined already")

    def _reach_training(self) -> None:
        self._follow_run()
        self._wait(lambda: all(HELD in self.run.log(rank) for rank in (0, 1)))
        time.sleep(0.2)

    _reach_all_reduce = _reach_barrier = _reach_training

    def _reach_checkpoint(self) -> None:
        self._follow_run()
        folder = self.run.folder / CHECKPOINTS
        complete: list[Path] = []

        def incomplete() -> bool:
            if not folder.exists():
                return False
            found = list(folder.glob("step-*"))
            complete[:] = [path for path in found if (path / DESCRIPTION).exists()]
            return len(found) > len(complete) > 0

        self._wait(incomplete, 0)

    def _reach_sending(self) -> None:
        self._follow_run()
        rank = int(self.case.role[-1]) if self.case.role.startswith("rank") else 0
        self._wait(lambda: HELD in self.run.log(rank))
        self._wait((self.run.folder / COLLECTING_FILE).exists)
        time.sleep(0.2)

    def _reach_write_back(self) -> None:
        self._follow_run()
        self._reach_packing()

    def _follow_run(self) -> None:
        self.run = self.session.new_run()

    def _state(self, rank: int) -> str:
        assert self.run is not None
        self.run.refresh()
        return self.run.view.ranks[rank].state

    def _wait(self, found: Any, pause: float = 0.01) -> Any:
        return wait_for(found, PATIENCE, f"phase {self.case.phase}", pause)

    def _launcher(self) -> int:
        assert self.run is not None

        def found() -> int:
            self.run.refresh()
            return self.run.view.launcher.pid if self.run.view.launcher else 0

        return int(self._wait(found, 0))

    def victim(self) -> int:
        """Return the pid of the process that the fault hits."""
        session, run = self.session, self.run
        match self.case.role:
            case "kernel":
                return session.pid
            case "Jupyter server":
                assert isinstance(session, ServerSession)
                return session.jupyter.process.pid
            case "fork server":
                return session.server()
            case "launcher":
                return self.suspended[0] if self.case.phase == "launch" else self._launcher()
            case role:
                assert run is not None
                run.refresh()
                process = run.view.ranks[int(role[-1])].process
                assert process is not None
                return process.pid

    def _hit(self) -> None:
        victim = self.victim()
        os.kill(victim, number(self.case.signal))
        if victim in self.suspended and self.case.signal != "STOP":
            self._resume(victim)
        if self.case.signal == "STOP":
            (self.session.folder / "go").touch()
            time.sleep(SUSPENDED)
            if victim not in self.suspended:
                os.kill(victim, signal.SIGCONT)
        else:
            with contextlib.suppress(TimeoutError):  # who ignores a signal goes on
                wait_for(lambda: state_of(victim) in ("", "Z"), SUSPENDED, "the end of the process")

    def _suspend(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        self.suspended.append(pid)

    def _resume(self, pid: int) -> None:
        self.suspended.remove(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def go_on(self) -> None:
        """Let everything go on that was held."""
        if self.case.phase != "launch" or self.run is not None:
            (self.session.folder / "go").touch()
        for pid in list(self.suspended):
            self._resume(pid)
