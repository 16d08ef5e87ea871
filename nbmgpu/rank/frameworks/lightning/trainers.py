"""Patches of Lightning's Trainers: they run on the rank's device, and do not distribute."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from nbmgpu.errors import StrategyError, format_message
from nbmgpu.rank.frameworks.own_distribution import BY_ITSELF, line_for_sizes

from .files import Coordination
from .library import LightningLibrary

if TYPE_CHECKING:
    from nbmgpu.rank.training.gradient_accumulation import GradientAccumulation

TRAINED = (
    "_lightning_module", "_model", "_optimizers", "_lightning_optimizers", "lr_scheduler_configs",
)  # fmt: skip
"""Attributes of a strategy of Lightning that hold the model and its optimizers."""


class SingleDevicePatch:
    """Keeps the Trainers of one copy of Lightning on the rank's device."""

    def __init__(
        self,
        device: str,
        accumulation: GradientAccumulation,
        coordination: Coordination,
        library: LightningLibrary,
    ) -> None:
        """Patch ``library``.

        Args:
            device: the rank's device.
            accumulation: refused, as a Trainer has an argument for it.
            coordination: lets ranks agree on folders.
            library: the copy of Lightning.
        """
        self.device = device
        self.accumulation = accumulation
        self.coordination = coordination
        self.library = library

    def install(self) -> None:
        """Install the patches, for the rest of this process."""

        def connect(original: Any) -> Any:
            def init(connector: Any, *args: Any, **given: Any) -> None:
                refuse_strategy(given.get("strategy", "auto"), given.get("num_nodes", 1))
                if self.device == "cpu" and given.get("accelerator", "auto") == "auto":
                    given["accelerator"] = "cpu"  # also where the machine has a GPU
                given["devices"] = 1  # the requested number of devices is that of the ranks
                original(connector, *args, **given)

            return init

        def run(original: Any) -> Any:
            def call(trainer: Any, *args: Any, **kwargs: Any) -> Any:
                self.accumulation.refuse_in("a Trainer", "Trainer(..., accumulate_grad_batches={})")
                with self._on_one_device(trainer._accelerator_connector):
                    self.coordination.agree_on_folders(trainer)
                    try:
                        return original(trainer, *args, **kwargs)
                    except SystemExit as end:
                        # Lightning exits on an interrupt; a rank still has results to send.
                        if isinstance(end.__context__, KeyboardInterrupt):
                            raise end.__context__ from None
                        raise

            return call

        connector = "trainer.connectors.accelerator_connector._AcceleratorConnector"
        self.library.wrap(f"{connector}.__init__", connect)
        self.library.wrap("trainer.call._call_and_handle_interrupt", run)

    @contextlib.contextmanager
    def _on_one_device(self, connector: Any) -> Iterator[None]:
        """Give a Trainer of the notebook the rank's device, and restore its own afterwards.

        With ``devices=2`` a Trainer in a notebook has chosen to fork processes; these are the
        ranks.
        """
        chosen, single = connector.strategy, self.library.of("strategies").SingleDeviceStrategy
        forks = getattr(chosen, "_start_method", "") == "fork" and chosen.num_nodes == 1
        if not forks:
            refuse_strategy(chosen, getattr(chosen, "num_nodes", 1), "Trainer of the notebook")
        device = torch.device(self.device)
        if chosen.root_device.type == "cpu":
            device = chosen.root_device  # as the user has chosen
        if chosen.root_device == device and not forks:
            yield
            return
        on_cpu = device.type == "cpu"
        accelerator = (
            self.library.of("accelerators").CPUAccelerator() if on_cpu else chosen.accelerator
        )
        strategy = single(device, accelerator, chosen._checkpoint_io, chosen.precision_plugin)
        connector.strategy = strategy
        vars(strategy).update({name: getattr(chosen, name) for name in TRAINED})
        try:
            yield
        finally:
            connector.strategy = chosen
            vars(chosen).update({name: getattr(strategy, name) for name in TRAINED})


def refuse_trainers(strategy: str, reason: str, library: LightningLibrary) -> None:
    """Refuse the Trainers of ``library`` when they run, for the rest of this process.

    Args:
        strategy: name of the strategy.
        reason: why it refuses them.
        library: the copy of Lightning.
    """

    def refused(*args: Any, **kwargs: Any) -> None:
        raise StrategyError(
            format_message(
                f"{strategy} does not run Lightning's Trainer: {reason}",
                "A plain loop, or Hugging Face's Trainer",
                "%%mgpu --strategy fsdp",
            )
        )

    library.replace("trainer.call._call_and_handle_interrupt", refused)


def refuse_strategy(strategy: Any, num_nodes: int, where: str = "Trainer") -> None:
    """Refuse a strategy of Lightning that distributes by itself.

    Args:
        strategy: the strategy, or its name.
        num_nodes: the number of machines that is asked for.
        where: what has the strategy: a Trainer or a Fabric.

    Raises:
        StrategyError: it does.
    """
    name = strategy if isinstance(strategy, str) else getattr(strategy, "strategy_name", "")
    if num_nodes == 1 and (
        name in ("auto", "single_device") or _is_a(strategy, "SingleDeviceStrategy")
    ):
        return
    asked = f"strategy={name or type(strategy).__name__!r}" if num_nodes == 1 else f"{num_nodes=}"
    line, family = BY_ITSELF, next((f for f in ("deepspeed", "fsdp") if f in str(name)), "ddp")
    if _is_a(strategy, "ModelParallelStrategy"):
        shards, parts = strategy._data_parallel_size, strategy._tensor_parallel_size
        line, family = line_for_sizes({"dp_shard": shards, "tp": parts}), "tp"
    if line == BY_ITSELF:
        line = f"%%mgpu --strategy {family}"
    kind = where.split(maxsplit=1)[0]
    raise StrategyError(
        format_message(
            f"This {where} distributes by itself ({asked}), and so do the ranks of %%mgpu",
            f"A {kind} under %%mgpu is written as for one device; --strategy chooses how ranks "
            "share its work. To let Lightning distribute: %%mgpu --strategy none",
            f"{kind}() without strategy= and num_nodes=, under {line}",
        )
    )


def _is_a(strategy: Any, name: str) -> bool:
    return any(cls.__name__ == name for cls in type(strategy).__mro__)
