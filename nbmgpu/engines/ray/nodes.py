"""The nodes of a run: on each an actor of Ray, which starts a node launcher."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from nbmgpu.engines.local.processes import KERNEL_ENDED
from nbmgpu.engines.multi_node import PROBLEMS
from nbmgpu.engines.multi_node.interpreter import NONE, check_of_python
from nbmgpu.engines.multi_node.launch_file import LAUNCH_FILE
from nbmgpu.rank.store.exit_reports import EXITS
from nbmgpu.rank.store.store_address import StoreAddress
from nbmgpu.rank.store.store_client import StoreClient
from nbmgpu.runs.run import Run
from nbmgpu.serialization import container
from nbmgpu.system.processes import process_is_alive

from . import node_actor
from .by_value import send_modules_by_value
from .cluster import HeadRequest
from .folder_copy import FolderCopy, NodeError

END_TIMEOUT = 10.0
"""Seconds that node launchers may take to end after their ranks."""

WAIT = 0.5
"""Seconds that a poll of a node waits for changes."""

LOST = "Ray has lost the node {node} with its ranks ({error})"
NO_CHECKPOINTS = (
    "Node {node} does not see the run folder {folder}, and checkpoints need a folder that "
    "all nodes share. Set NBMGPU_RUNS in the notebook to one, or leave --checkpoint-every and "
    "--resume out."
)


@dataclass(frozen=True)
class NodeStart:
    """What node launchers are started with.

    Attributes:
        head: the address of the store, as nodes reach it.
        python: the interpreter on the nodes; empty for that of Ray's workers.
        request: of the kernel.
    """

    head: StoreAddress
    python: str
    request: HeadRequest


class RayNodes:
    """All nodes of a run; a ``NodeProcesses``."""

    def __init__(self, run: Run, group: PlacementGroup, start: NodeStart) -> None:
        """Start a node launcher on each node of ``group``, which has a bundle for each."""
        self._group = group
        self._nodes = [Node(run, rank, group, start) for rank in range(run.record.nodes)]
        for node in self._nodes:
            node.thread.start()

    @property
    def ended(self) -> bool:
        """Whether no node launcher is left."""
        return all(node.code is not None for node in self._nodes)

    @property
    def failed(self) -> bool:
        """Whether one of them has ended with an error."""
        return any(node.code for node in self._nodes)

    @property
    def lost(self) -> str:
        """Which node Ray has lost; empty if none."""
        return next((node.lost for node in self._nodes if node.lost), "")

    def why_ended(self) -> str:
        """Nothing: Ray ends no job."""
        return ""

    def output(self) -> str:
        """Return what they have printed last."""
        return "\n".join(node.output for node in self._nodes if node.output)[-2000:]

    def have_copied(self, since: float) -> bool:
        """Return whether this machine has all files as nodes had them at ``since``."""
        return all(node.code is not None or node.has_copied(since) for node in self._nodes)

    def end(self, at_once: bool = False) -> None:
        """End actors, and give their resources back."""
        deadline = time.monotonic() + (0.0 if at_once else END_TIMEOUT)
        for node in self._nodes:
            node.thread.join(max(deadline - time.monotonic(), 0))
        for node in self._nodes:
            node.end()
        remove_placement_group(self._group)


class Node:
    """A node, its actor, and the thread of this process that waits for it.

    Attributes:
        code: exit code of the node launcher; None as long as it may run.
        output: what it has printed last.
        lost: why Ray has lost it; empty if it has not.
    """

    def __init__(self, run: Run, rank: int, group: PlacementGroup, start: NodeStart) -> None:
        """Prepare the node with the number ``rank``."""
        self.code: int | None = None
        self.output = self.lost = ""
        self._copied_at = 0.0
        self.thread = threading.Thread(target=self._run, daemon=True)
        self._record, self._folder, self._rank = run.record, run.folder, rank
        self._strategy = PlacementGroupSchedulingStrategy(group, rank)
        self._given = start
        self._name = f"number {rank}"
        self._copy: FolderCopy | None = None
        self._bundle = False
        self._actor: Any = None

    def has_copied(self, since: float) -> bool:
        """Return whether this machine has all files as the node had them at ``since``."""
        return self._copy is None or self._copied_at > since

    def _run(self) -> None:
        try:
            self._start()
            while self.code is None:
                self._poll()
        except RayActorError as error:
            self.lost = LOST.format(node=self._name, error=str(error).split("\n")[0].rstrip("."))
            self._report(f"{self.lost}.")
        except NodeError as error:
            self._report(str(error))
        except Exception as error:  # whatever it is, the run must end with it
            self._report(f"Node {self._name} has failed: {error}")

    def _report(self, problem: str) -> None:
        """Let the run fail with ``problem``; the ranks of this node count as killed."""
        store = StoreClient(StoreAddress(host="127.0.0.1", port=self._given.head.port))
        store.append(PROBLEMS, f"{problem}\n")
        size = self._record.ranks_per_node
        ranks = range(self._rank * size, (self._rank + 1) * size)
        store.append(EXITS, "".join(f"{rank} {-signal.SIGKILL}\n" for rank in ranks))
        self.output, self.code = problem, 1

    def _start(self) -> None:
        """Start the actor and the node launcher, with a copy of the run folder if it needs one."""
        self._actor = self._new_actor()
        digest = hashlib.sha256((self._folder / LAUNCH_FILE).read_bytes()).hexdigest()
        cwd = self._record.kernel.cwd
        self._name, visible = self._call("describe", str(self._folder), digest, cwd)
        folder, request, python = str(self._folder), self._given.request, self._given.python
        variables, restored = request.environment, request.restored
        if not visible:
            variables = {name: variables[name] for name in ("PYTHONHASHSEED", "PYTHONSAFEPATH")}
            restored = json.dumps(dict.fromkeys(variables))
        elif python not in ("", self._record.kernel.python):  # it has libraries of its own
            paths = filter(None, self._record.kernel.own_path)  # an empty one is any working folder
            variables = variables | {"PYTHONPATH": os.pathsep.join(paths)}
        if python:
            self._check_python(python, variables)
        if not visible:
            values = self._record.options.values
            if values.get("checkpoint_every") or values.get("resume"):
                raise NodeError(NO_CHECKPOINTS.format(node=self._name, folder=self._folder))
            bundle, host = self._record.storage.bundle, self._given.head.host
            self._copy = FolderCopy(self._folder, cwd, self._call, python, bundle, host)
            folder = self._copy.path
        arguments = [
            *(f"--node-rank={self._rank}", f"--node-name={self._name}"),
            f"--head={self._given.head.host}:{self._given.head.port}",
            f"--restore-variables={restored}",
        ]
        self._call("start", folder, python, arguments, variables)

    def _check_python(self, python: str, variables: dict[str, str]) -> None:
        """Raise an error if the interpreter that was chosen cannot run ranks on this node."""
        try:
            said = self._call("check_python", python, check_of_python(), variables)
            problem = f"Node {self._name} cannot run ranks: {said}" if said else ""
        except OSError:
            problem = NONE.format(python=python, node=self._name)
        if problem:
            raise NodeError(problem)

    def _new_actor(self) -> Any:
        """Return a new actor with all resources of this node."""
        bundle = self._strategy.placement_group.bundle_specs[self._rank]
        send_modules_by_value()
        actor = ray.remote(node_actor.NodeActor).options(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            scheduling_strategy=self._strategy,
        )
        return actor.remote()

    def _call(self, method: str, *arguments: object) -> Any:
        """Return what a method of the actor returns."""
        return ray.get(getattr(self._actor, method).remote(*arguments))

    def _poll(self) -> None:
        """Wait for the node for a while; bring files here and there."""
        begun = time.monotonic()
        self._require_bundle()
        code, self.output, changes = self._call("poll", WAIT)
        if self._copy is not None:
            self._copy.receive(changes)
            self._copy.send()
        if all(complete for *_, complete in changes):
            self._copied_at = begun
        self.code = code

    def _require_bundle(self) -> None:
        """Raise an error if the kernel has ended before the bundle was complete."""
        kernel = self._record.kernel
        self._bundle = self._bundle or container.is_complete(self._record.storage.bundle)
        if not (self._bundle or process_is_alive(kernel.pid, kernel.create_time)):
            raise NodeError(KERNEL_ENDED)

    def end(self) -> None:
        """End the actor and what it has started."""
        if self._copy is not None:
            self._copy.close()
        if self._actor is not None:
            with suppress(Exception):  # its node is lost: nothing is left to end there
                ray.get(self._actor.end.remote(), timeout=END_TIMEOUT)
            ray.kill(self._actor)
