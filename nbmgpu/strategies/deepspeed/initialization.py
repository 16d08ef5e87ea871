"""Import DeepSpeed and create its engine, without side effects on the cell."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from nbmgpu.environment import random_state
from nbmgpu.errors import StrategyError, format_message
from nbmgpu.patches import PatchStack


def import_deepspeed(device: str) -> None:
    """Import DeepSpeed quietly, select its accelerator for ``device`` and compile nothing.

    Raises:
        StrategyError: DeepSpeed does not know the device.
    """
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        what = f"nbmgpu runs DeepSpeed on CUDA and on the CPU, and this device is {kind}"
        raise StrategyError(format_message(what, "", "--strategy fsdp"))
    import deepspeed
    from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    # DeepSpeed calls functions that torch has renamed, at every step.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    # Otherwise this op is compiled in the first run (22 s), or waits forever for a stale lock.
    available = deepspeed.ops.__compatible_ops__
    no_shm = {**available, "deepspeed_shm_comm": False}
    PatchStack().replace("deepspeed.ops.__compatible_ops__", no_shm)
    # Do not use DeepSpeed's detection: CPU ranks may run on a machine that has a GPU.
    from deepspeed.accelerator import real_accelerator

    if device == "cpu":
        from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator as Accelerator
    else:
        from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator as Accelerator
    real_accelerator.set_accelerator(Accelerator())
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False, dist_init_required=False)


def check_fp16_support(device: str) -> None:
    """Refuse ``--precision fp16`` where DeepSpeed's accelerator does not support it.

    Raises:
        StrategyError: the accelerator has no float16.
    """
    from deepspeed.accelerator import get_accelerator

    if not get_accelerator().is_fp16_supported():
        what = f"DeepSpeed does not train in fp16 on this {device.split(':', maxsplit=1)[0]}"
        raise StrategyError(format_message(what, "", "--precision bf16"))


def initialize_engine(
    model: nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any]
) -> Any:
    """Return a ``DeepSpeedEngine`` for ``model``; collective.

    The random number generators keep their states.  All ranks must hold the same weights.
    """
    import deepspeed

    with random_state.kept(), _initial_broadcast_skipped():
        engine, *_ = deepspeed.initialize(
            model=model, optimizer=optimizer, config=config, dist_init_required=False
        )
    return engine


@contextlib.contextmanager
def _initial_broadcast_skipped() -> Iterator[None]:
    """Skip DeepSpeed's broadcast of rank 0's parameters.

    The strategy has synchronized them already.  DeepSpeed 0.19.8 sends each parameter as
    ``p.data.view(torch.uint8)``, which fails for a 0-dimensional one, such as a learnable scale.
    """

    def zero_init_param(init: Any, param: Any) -> None:
        init._convert_to_deepspeed_param(param)
        param.partition()

    init = "deepspeed.runtime.zero.partition_parameters.Init"
    with PatchStack() as patches:
        patches.replace(
            "deepspeed.runtime.engine.DeepSpeedEngine._broadcast_model", lambda engine: None
        )
        patches.replace(f"{init}._zero_init_param", zero_init_param)
        yield


COORDINATOR = "deepspeed.runtime.zero.partitioned_param_coordinator.PartitionedParameterCoordinator"
COORDINATOR_METHODS = ("fetch_sub_module", "release_sub_module", "reset_step")
"""Methods of ``PartitionedParameterCoordinator`` that assign ``param.data``."""


def assign_normal_tensors(coordinator: Any) -> None:
    """Let DeepSpeed's parameter coordinator assign normal tensors in ``torch.inference_mode()``.

    Stage 3 reuses a gathered parameter.  One that was gathered during an evaluation in inference
    mode would be an inference tensor in the next training step, which autograd cannot save.
    """
    patches = PatchStack()
    for name in COORDINATOR_METHODS:
        patches.wrap(f"{COORDINATOR}.{name}", _outside_inference_mode, coordinator)


def _outside_inference_mode(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with inference_mode_disabled():
            return function(*args, **kwargs)

    return call


@contextlib.contextmanager
def inference_mode_disabled() -> Iterator[None]:
    """Create normal tensors, also while the cell evaluates in ``torch.inference_mode()``."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():  # leaving inference mode enables gradients
        yield
