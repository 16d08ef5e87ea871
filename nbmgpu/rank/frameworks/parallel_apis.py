"""Patches of libraries with which a cell may distribute a model itself, beside the strategy.

``PipelineStage`` of torch and ``deepspeed.initialize`` are refused where they are called: their
collectives would wait for ranks that the strategy gives other work.  What
``parallelize_module``, ``fully_shard`` and the like leave behind is found when the model trains,
by ``own_distribution.refuse_distributed``.  The process group that a cell makes for
``DistributedDataParallel`` is the one that the ranks have.  A ``Fabric`` stays on the rank's
device, as Lightning's Trainer does, and is refused where it distributes.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from nbmgpu.patches import PatchStack

from .lightning.trainers import refuse_strategy
from .own_distribution import distributes_by_itself, line_for, refuse

if TYPE_CHECKING:
    from nbmgpu.rank.session import TrainingSession

PIPELINING = "torch.distributed.pipelining"
DEEPSPEED = "deepspeed"
FABRICS = ("lightning.fabric", "lightning_fabric")

_patched: set[str] = set()


def install(session: TrainingSession) -> None:
    """Patch the libraries that have been imported, each once."""
    strategy = session.strategy
    name, by_itself = strategy.profile.name, distributes_by_itself(strategy)
    if _is_new("torch.distributed", "init_process_group"):
        for target in ("init_process_group", "destroy_process_group"):
            PatchStack().wrap(f"torch.distributed.{target}", _kept_group)
    if _is_new(DEEPSPEED, "initialize"):
        if not by_itself:
            PatchStack().wrap("deepspeed.initialize", lambda call: _refused_engine(call, name))
        elif strategy.device == "cpu":
            _compile_nothing()
    if not by_itself and _is_new(PIPELINING, "PipelineStage"):
        PatchStack().wrap(
            f"{PIPELINING}.stage._PipelineStageBase.__init__", lambda _: _refused_stage(name)
        )
    for package in FABRICS:
        if not by_itself and _is_new(package, "Fabric"):
            PatchStack().wrap(
                "lightning.fabric.Fabric.__init__",
                lambda init: _on_one_device(init, strategy.device),
                sys.modules[package].Fabric,
            )


def _is_new(module: str, name: str) -> bool:
    """Return whether ``module`` has been imported, and is to be patched now."""
    if module in _patched or not hasattr(sys.modules.get(module), name):
        return False
    _patched.add(module)
    return True


def _is_called_by_nbmgpu() -> bool:
    caller: str = sys._getframe(2).f_globals.get("__name__", "")
    return caller.startswith("nbmgpu.")


def _kept_group(function: Any) -> Any:
    """Return a function of the cell that leaves the ranks' default process group as it is."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        default = not args or isinstance(args[0], str) or args[0] is dist.group.WORLD
        if dist.is_initialized() and default and not _is_called_by_nbmgpu():
            return None
        return function(*args, **kwargs)

    return call


def _refused_engine(initialize: Any, strategy: str) -> Any:
    @functools.wraps(initialize)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _is_called_by_nbmgpu():
            return initialize(*args, **kwargs)
        config = kwargs.get("config") or kwargs.get("config_params")
        return refuse("deepspeed.initialize()", strategy, line_for("deepspeed", config))

    return call


def _compile_nothing() -> None:
    """Mark an operator as unavailable that DeepSpeed would compile on a CPU, for minutes."""
    import deepspeed

    available = {**deepspeed.ops.__compatible_ops__, "deepspeed_shm_comm": False}
    PatchStack().replace("deepspeed.ops.__compatible_ops__", available)


def _refused_stage(strategy: str) -> Any:
    def init(stage: Any, *args: Any, **kwargs: Any) -> None:
        refuse("PipelineStage", strategy, "%%mgpu --strategy pp")

    return init


def _on_one_device(init: Any, device: str) -> Any:
    """Return an ``__init__`` of ``Fabric`` for one device, whatever number is asked for."""

    def on_one_device(fabric: Any, **given: Any) -> None:
        refuse_strategy(given.get("strategy", "auto"), given.get("num_nodes", 1), "Fabric")
        if device == "cpu" and given.get("accelerator", "auto") == "auto":
            given["accelerator"] = "cpu"  # also where the machine has a GPU
        init(fabric, **{**given, "devices": 1})

    return on_one_device
