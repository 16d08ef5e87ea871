"""``python -m nbmgpu.rank <run folder> <sockets' folder> <variables>``: a rank under torchrun."""

import sys

from .main import under_torchrun

if __name__ == "__main__":
    under_torchrun(*sys.argv[1:])
