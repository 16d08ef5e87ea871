"""What the kernel tells the processes of a job: a file in the run folder."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from nbmgpu.system.ownership import require_own

from .versions import Versions

LAUNCH_FILE = "engine.json"


@dataclass(frozen=True)
class LaunchFile:
    """The content of ``engine.json``, which only its owner can read.

    Attributes:
        key: what connections to the run's store must know, in hexadecimal digits.
        versions: of the kernel; those of the nodes must be the same.
        interface: network interface for gloo and NCCL; empty for the one that leads to the head.
    """

    key: str
    versions: Versions
    interface: str = ""

    @classmethod
    def create(cls, folder: Path, interface: str) -> LaunchFile:
        """Write the file of a new run into its folder."""
        launch = cls(secrets.token_hex(32), Versions.of_this_process(), interface)
        fd = os.open(folder / LAUNCH_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump(dataclasses.asdict(launch), file)
        return launch

    @classmethod
    def read(cls, folder: Path) -> LaunchFile:
        """Return the content of the file.

        Raises:
            OSError: the folder is not that of a run of this user.
        """
        path = folder / LAUNCH_FILE
        require_own(path)
        fields = json.loads(path.read_text())
        return cls(fields["key"], Versions(**fields["versions"]), fields["interface"])
