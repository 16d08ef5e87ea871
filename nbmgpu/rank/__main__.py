"""``python -m nbmgpu.rank <run folder> <folder of sockets>``: one rank under torchrun."""

import sys

from .main import under_torchrun

if __name__ == "__main__":
    under_torchrun(*sys.argv[1:])
