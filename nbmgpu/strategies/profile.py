"""What a user chooses a strategy by, readable without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .option_support import OptionSupport
from .strategy_options import StrategyOptions


@dataclass(frozen=True)
class Requirements:
    """What a strategy needs.

    Attributes:
        packages: names of packages, besides torch.
        torch: the oldest release of torch; (0, 0) for any.
        cuda: whether it runs on no other accelerator than CUDA; all run on the CPU.
    """

    packages: tuple[str, ...] = ()
    torch: tuple[int, int] = (0, 0)
    cuda: bool = False


@dataclass(frozen=True)
class Profile:
    """One strategy as a user chooses it.

    Attributes:
        name: value of ``--strategy``.
        summary: one line for users.
        aliases: other names for it, from Lightning, accelerate, DeepSpeed and torch.
        options: the options that it supports.
        requirements: what must be installed, and the accelerator.
        modules: modules that take long to import, which the launcher imports before ranks start.
        check: raises ``OptionError`` for values of options that ``options`` cannot express, in the
            kernel, before anything starts; it must not import torch.
        shards_data: whether each rank trains on a shard of every global batch.
        in_one_process: whether one rank uses all devices.
        mesh: dimensions of its device mesh, outermost first.  Ranks along ``dp`` and ``fsdp`` have
            different samples.
        default_mesh: sizes of dimensions without ``--mesh``, except of the last one.
        needs, saves, costs: columns of the documentation.
    """

    name: str
    summary: str
    aliases: tuple[str, ...] = ()
    options: OptionSupport = field(default_factory=OptionSupport)
    requirements: Requirements = Requirements()
    modules: tuple[str, ...] = ()
    check: Callable[[StrategyOptions], None] | None = None
    shards_data: bool = True
    in_one_process: bool = False
    mesh: tuple[str, ...] = ("dp",)
    default_mesh: Mapping[str, int] = field(default_factory=dict)
    needs: str = ""
    saves: str = ""
    costs: str = ""
