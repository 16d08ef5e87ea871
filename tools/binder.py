"""Rehearse Binder's build without Docker, in a clean folder and environment.

    python tools/binder.py [--keep FOLDER]

The files of the working tree replace the clone that repo2docker makes, a virtual environment
replaces conda's, and packages come from PyPI instead of conda-forge.  Then ``binder/postBuild``
runs unchanged, and the server starts as Binder starts it.  Sizes and times are printed; a step that
fails ends the rehearsal.  Node.js and pip's environment variables, such as the index of torch's
builds without CUDA, are those of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
ENVIRONMENT = REPOSITORY / "binder" / "environment.yml"
ON_PYPI = {
    "jupyter_core": "jupyter-core",
    "matplotlib-base": "matplotlib",
    "pytorch-cpu": "torch",
}
"""Packages that have another name on PyPI."""

PROVIDED = {"python", "nodejs", "pip"}
"""Packages that the virtual environment or the machine provides."""

START_TIMEOUT = 60
"""Seconds within which the server must respond."""


def packages() -> dict[str, str]:
    """Return the packages of environment.yml: names on PyPI, and version constraints."""
    found = re.findall(r"^  - ([A-Za-z0-9_-]+)([<>=][^\s#]*)?$", ENVIRONMENT.read_text(), re.M)
    return {ON_PYPI.get(name, name): version for name, version in found if name != "conda-forge"}


def requirements() -> list[str]:
    """Return the requirements for pip, with the build of torch that the Makefile installs."""
    pinned = re.search(r"^torch==\S+", (REPOSITORY / "constraints.txt").read_text(), re.M)
    assert pinned is not None
    torch = pinned[0] + ("+cpu" if sys.platform == "linux" else "")
    others = {name: version for name, version in packages().items() if name not in PROVIDED}
    return [torch if name == "torch" else name + version for name, version in others.items()]


class Rehearsal:
    """A home folder that contains a clone, and an environment next to it."""

    def __init__(self, folder: Path) -> None:
        """Use the empty ``folder``."""
        self.home, self.prefix = folder / "home", folder / "environment"
        self.home.mkdir()
        path = os.pathsep.join([str(self.prefix / "bin"), os.environ["PATH"]])
        self.environment = os.environ | {"HOME": str(self.home), "PATH": path}
        for name in ("PYTHONPATH", "VIRTUAL_ENV", "JUPYTER_PATH", "JUPYTER_CONFIG_DIR"):
            self.environment.pop(name, None)

    def run(self, step: str, *command: str) -> None:
        """Run one step in the home folder, and print its duration."""
        start = time.monotonic()
        subprocess.run(command, cwd=self.home, env=self.environment, check=True)
        print(f"{time.monotonic() - start:6.1f} s  {step}", flush=True)

    def clone(self) -> None:
        """Copy the repository's files to the home folder, as repo2docker does."""
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=REPOSITORY, check=True, capture_output=True).stdout
        for name in filter(None, names.decode().split("\0")):
            source, target = REPOSITORY / name, self.home / name
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)

    def build(self) -> None:
        """Run the steps of the build, and print the sizes."""
        self.clone()
        self.run("environment", sys.executable, "-m", "venv", str(self.prefix))
        pip = [str(self.prefix / "bin" / "pip"), "install", "--no-cache-dir", "--quiet"]
        known = ["--constraint", str(REPOSITORY / "constraints.txt")]
        self.run("packages of environment.yml", *pip, *known, *requirements())
        before = size(self.prefix) + size(self.home)
        self.run("postBuild", str(self.home / "binder" / "postBuild"))
        after = size(self.prefix) + size(self.home)
        print(
            f"{before / 1e6:6.0f} MB  before postBuild, {after / 1e6:.0f} MB after it", flush=True
        )

    def serve(self) -> None:
        """Start the server as Binder does, and check what its first page requests."""
        token, start = secrets.token_hex(8), time.monotonic()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [
            str(self.prefix / "bin" / "jupyter-lab"), "--no-browser", "--allow-root",
            "--ip=127.0.0.1", f"--port={port}", f"--IdentityProvider.token={token}",
        ]  # fmt: skip
        with (self.home.parent / "server.log").open("w") as log:
            server = subprocess.Popen(
                command, cwd=self.home, env=self.environment, stdout=log, stderr=log
            )
        try:
            address = f"http://127.0.0.1:{port}"
            self._wait_for(f"{address}/api/status?token={token}", start + START_TIMEOUT)
            print(f"{time.monotonic() - start:6.1f} s  until the server responds")
            settings = _get(f"{address}/lab/api/settings?token={token}")
            names = {setting["id"] for setting in settings["settings"]}
            assert "nbmgpu:settings" in names, "JupyterLab does not see the extension"
            workspace = _get(f"{address}/lab/api/workspaces/default?token={token}")
            right = workspace["data"]["layout-restorer:data"]["right"]
            assert right["current"] == "nbmgpu-sidebar", "the sidebar is not open"
            status = _get(f"{address}/nbmgpu/api/status?token={token}")
            assert status["problems"] == [], status["problems"]
            print("          extension, sidebar and server extension are available")
        finally:
            server.terminate()
            server.wait(20)

    @staticmethod
    def _wait_for(url: str, deadline: float) -> None:
        while True:
            try:
                _get(url)
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def demo(self) -> None:
        """Run the quickstart as a visitor would."""
        python, executed = str(self.prefix / "bin" / "python"), str(self.home.parent / "run.ipynb")
        self.run("quickstart", python, "tools/demo.py", "notebooks/quickstart.ipynb", executed)


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as response:
        return json.load(response)


def size(folder: Path) -> int:
    """Return the total size of the files in ``folder`` in bytes."""
    return sum(file.lstat().st_size for file in folder.rglob("*") if not file.is_dir())


def main() -> None:
    """Build, start the server, and run the quickstart."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keep", type=Path, help="use this new folder, and keep it")
    keep = parser.parse_args().keep
    folder = keep or Path(tempfile.mkdtemp(prefix="nbmgpu-binder-"))
    folder.mkdir(parents=True, exist_ok=keep is None)
    try:
        rehearsal = Rehearsal(folder)
        rehearsal.build()
        rehearsal.serve()
        rehearsal.demo()
    finally:
        if keep is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
