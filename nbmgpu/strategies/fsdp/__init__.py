"""``fsdp`` and ``zero2``: torch's FSDP2, below a cell that sees its own objects.

``strategy`` is what the rank talks to.  ``sharding`` decides what is sharded piece by piece,
``engine`` holds FSDP2 itself, ``faces`` what the cell sees of a shard, ``elementwise`` the
optimizer's step on it, and ``homecoming`` makes all of it whole again.
"""

from .strategy import FullyShardedDataParallel, ZeroStage2

__all__ = ["FullyShardedDataParallel", "ZeroStage2"]
