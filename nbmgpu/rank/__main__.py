"""``python -m nbmgpu.rank <run folder> <sockets' folder> <variables>``: a rank under torchrun."""

import sys

from .main import be_under_torchrun

if __name__ == "__main__":
    be_under_torchrun(*sys.argv[1:])
