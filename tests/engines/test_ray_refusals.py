"""What to type where a Ray cluster cannot be used, from what Ray has said."""

from __future__ import annotations

import pytest

from nbmgpu.engines.ray.cluster_options import ClusterOptions
from nbmgpu.engines.ray.refusal import refusal
from nbmgpu.errors import OptionError, split_remedy

REFUSED = "ConnectionRefusedError: [Errno 111] Connection refused"
NONE_HERE = "ConnectionError: Could not find any running Ray instance. Please specify the one to"
VERSIONS = """RuntimeError: Version mismatch: The cluster was started with:
    Ray: 2.9.0
    Python: 3.10.4
This process on node 10.0.0.5 was started with:
    Ray: 2.55.1
    Python: 3.11.2
"""


@pytest.mark.parametrize(
    ("said", "address", "what", "instead"),
    [
        (REFUSED, "ray://h:6379", "for clients", "--engine-option address=ray://h:10001"),
        (REFUSED, "ray://h:10001", "if ray[client] is installed", "--ray-client-server-port=10001"),
        (REFUSED, "h:10001", "nothing listens there", "--engine-option address=h:6379"),
        (REFUSED, "h:6379", "listens for its nodes", "ray start --head --port=6379, on h"),
        ("TimeoutError: timed out", "h:6379", "a firewall", "ray start --head --port=6379, on h"),
        ("socket.gaierror: unknown", "ray://h:1", "no machine is known here as h", "IP-ADDRESS:1"),
        (NONE_HERE, "auto", "none runs on this machine", "ray start --head"),
        (VERSIONS, "h:6379", "it has Ray 2.9.0 and Python 3.10.4", "pip install ray==2.9.0"),
    ],
)
def test_the_remedy_fits_the_failure(said: str, address: str, what: str, instead: str) -> None:
    text, remedy = split_remedy(refusal(said, address))
    assert text.startswith(f"Cannot connect to the Ray cluster at {address}: ")
    assert what in text
    assert instead in remedy


@pytest.mark.parametrize(
    ("address", "instead"),
    [
        ("ray://h", "address=ray://h:10001"),
        ("h", "address=h:6379"),
        ("http://h:8265", "address=h:6379"),
        ("h:port", "address=h:6379"),
    ],
)
def test_an_address_without_a_port_is_refused_at_once(address: str, instead: str) -> None:
    with pytest.raises(OptionError, match="not the address of a Ray cluster") as caught:
        ClusterOptions.of({"address": address})
    assert split_remedy(str(caught.value))[1] == f"--engine-option {instead}"


@pytest.mark.parametrize("address", ["h:6379", "ray://h:10001", "ray://[::1]:1", "auto", "local"])
def test_addresses_of_clusters(address: str) -> None:
    assert ClusterOptions.of({"address": address}).address == address
