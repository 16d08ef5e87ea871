"""What another user tries at the store of a run."""

from __future__ import annotations

from pathlib import Path

from other_user import run_as_other_user

REPOSITORY = Path(__file__).parents[2]

IMPORTS = f"""
sys.path.insert(0, {str(REPOSITORY)!r})
from nbmgpu.rank.store.messages import encode
from nbmgpu.rank.store.store_address import StoreAddress
"""
STRANGER = """
key = b"secret"
requests = [b"list"], [b"get", key], [b"set", key, b"other"], [b"delete", key], [b"add", b"0", b"1"]
for request in requests:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(5)
        try:
            raw.connect(StoreAddress(sys.argv[1]).socket_address())
            raw.sendall(encode(request))
            print(raw.recv(1000))
        except (PermissionError, ConnectionError) as error:
            print(type(error).__name__)
"""


def use_store_as_other_user(path: str) -> list[str]:
    """Send each request to the store at ``path``; return the answers, or the exceptions."""
    return run_as_other_user(STRANGER, path, imports=IMPORTS).split()
