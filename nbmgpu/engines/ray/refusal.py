"""Why a Ray cluster cannot be used, and what to type, from what Ray or the system says."""

from __future__ import annotations

import re

from nbmgpu.errors import format_message

CLIENT = "ray://"
"""Begins addresses of clusters in which this machine is no node."""

PORT, CLIENT_PORT = "6379", "10001"
"""Where a head node listens by default: for its nodes, and for clients."""

ADDRESS = re.compile(r"(ray://)?([^/\s]+):(\d+)")
WORDS = ("", "auto", "local")
"""Addresses without host and port."""

NOT_CONNECTED = "Cannot connect to the Ray cluster{address}: {error}"

NO_TOKEN = (
    "The Ray cluster wants a token. Set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN in the notebook, to "
    "what its head node prints"
)
NOT_STARTED = (
    "Ray could not start a cluster on this machine: {error} Its own logs are in "
    "/tmp/ray/session_latest/logs. Ray gives it 30 seconds, which a busy machine can exceed"
)
REFUSED = "nothing listens there, or a firewall is between"
UNKNOWN_HOST = "no machine is known here as {host}"
NONE_HERE = "none runs on this machine"
FOR_NODES = f"A head node listens for its nodes at the port of ray start --head, by default {PORT}"
FOR_CLIENTS = (
    "A head node listens for clients at --ray-client-server-port of ray start --head, by default "
    f"{CLIENT_PORT}, if ray[client] is installed there"
)
VERSIONS = "it has Ray {} and Python {}, the notebook has Ray {} and Python {}"
SAME_PYTHON = " in an environment with that Python, and the notebook there"
OTHER_VERSIONS = re.compile(
    r"cluster was started with:\s+Ray: (\S+)\s+Python: (\S+)\s.*started with:\s+Ray: (\S+)\s+"
    r"Python: (\S+)",
    re.DOTALL,
)


def address_problem(address: str) -> tuple[str, str, str]:
    """Return what is wrong with the form of an address, what is allowed, and what to type.

    They are empty if nothing is.
    """
    if address in WORDS or ADDRESS.fullmatch(address):
        return "", "", ""
    scheme, _, rest = address.rpartition("://")
    host = re.split(r"[:/]", rest)[0] or "host"
    near = f"{CLIENT}{host}:{CLIENT_PORT}" if scheme == "ray" else f"{host}:{PORT}"
    allowed = f"Addresses: host:{PORT}, {CLIENT}host:{CLIENT_PORT}, auto, local"
    return f"address={address} is not the address of a Ray cluster", allowed, f"address={near}"


def refusal(said: str, address: str) -> str:
    """Return the message for what Ray has said instead of connecting.

    Args:
        said: the end of its output.
        address: of the cluster; empty for one of this machine.
    """
    error = said.splitlines()[-1]
    if "InvalidAuthToken" in said:
        return format_message(NO_TOKEN, instead="ray get-auth-token")
    if "timed out during startup" in said:
        return format_message(NOT_STARTED.format(error=error), instead="the cell once more")
    if found := OTHER_VERSIONS.search(said):
        way = f"pip install ray=={found[1]}" + (SAME_PYTHON if found[2] != found[4] else "")
        return _message(address, VERSIONS.format(*found.groups()), "", way)
    parts = ADDRESS.fullmatch(address)
    if parts is None:
        error = NONE_HERE if "find any running Ray" in said else error
        return _message(address, error, FOR_NODES, f"ray start --head --port={PORT}")
    is_client, host, port = bool(parts[1]), parts[2], parts[3]
    if "gaierror" in error:
        near = f"{parts[1] or ''}IP-ADDRESS:{port}"
        unknown = UNKNOWN_HOST.format(host=host)
        return _message(address, unknown, "", f"--engine-option address={near}")
    usual, allowed = (CLIENT_PORT, FOR_CLIENTS) if is_client else (PORT, FOR_NODES)
    option = "ray-client-server-port" if is_client else "port"
    way = f"ray start --head --{option}={usual}, on {host}"
    if port != usual:
        way = f"--engine-option address={parts[1] or ''}{host}:{usual}"
    is_refused = any(word in error for word in ("ConnectionRefused", "imed out", "timeout"))
    return _message(address, REFUSED if is_refused else error, allowed, way)


def _message(address: str, error: str, allowed: str, instead: str) -> str:
    where = f" at {address}" if address else ""
    return format_message(NOT_CONNECTED.format(address=where, error=error), allowed, instead)
