"""Patches of accelerate: it sees one process, and nbmgpu distributes its loops.

``accelerate.Accelerator()`` would detect the process group and distribute by itself: wrap the
model, give each rank other batches, pad the last one.  In a rank its state reports a single
process, so its loaders, backward passes and clipping reach nbmgpu's patches of torch like those
of a plain loop.  Under ``--strategy none`` it sees the group, as under torchrun.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from nbmgpu.patches import PatchStack
from nbmgpu.rank.data.loader_events import EventQueue
from nbmgpu.rank.files import writes
from nbmgpu.rank.reporting import notices
from nbmgpu.rank.store.broadcast import wait_for_rank_0

from .own_distribution import distributes_by_itself, line_for, refuse

if TYPE_CHECKING:
    from nbmgpu.rank.data.loader_events import LoaderEventDispatcher
    from nbmgpu.rank.progress import TrainingProgress
    from nbmgpu.rank.rank_info import RankInfo
    from nbmgpu.rank.reporting.recorder import Recorder
    from nbmgpu.rank.session import TrainingSession

OWN_DISTRIBUTION = (
    "deepspeed_plugin", "fsdp_plugin", "megatron_lm_plugin", "torch_tp_plugin",
    "parallelism_config",
)  # fmt: skip
"""Arguments of ``Accelerator`` that choose a distribution in the cell."""

SINGLE_PROCESS = {
    "num_processes": 1,
    "process_index": 0,
    "local_process_index": 0,
    "backend": None,
}
"""accelerate's state in a process without a process group."""


def install(session: TrainingSession) -> None:
    """Patch accelerate for the strategy of ``session``."""
    from accelerate import state

    patches, strategy = PatchStack(), session.strategy
    if strategy.device == "cpu":
        # Without it accelerate ignores gloo under --strategy none, and ranks train separately.
        os.environ["ACCELERATE_USE_CPU"] = "true"
    states = _States(strategy.device, patches)
    for kind in (state.PartialState, state.AcceleratorState, state.GradientState):
        states.patch(kind)
    if distributes_by_itself(strategy):
        return
    states.hide_process_group()
    _refuse_other_distributions(strategy.profile.name, patches)
    patches.wrap("accelerate.Accelerator.backward", _dividing_gradients)
    _report_sharded_metrics(session.progress, session.recorder, patches)
    _save_on_rank_0(session.rank_info, patches)
    for loader in ("DataLoaderShard", "DataLoaderDispatcher", "SkipDataLoader"):
        target = f"accelerate.data_loader.{loader}.__iter__"
        _begin_steps_in_order(session.loader_events, patches, target)


class _States:
    """accelerate's state classes: all instances of a class in a process share one ``__dict__``.

    Instances that come from the notebook join the rank's shared state.  When they are sent back,
    the entries that describe the process (and not the training) are the notebook's again.
    """

    def __init__(self, rank_device: str, patches: PatchStack) -> None:
        self.rank_device = rank_device
        self.patches = patches
        self.device: Any = None

    def patch(self, kind: Any) -> None:
        """Let instances of ``kind`` that are unpickled share the state of this process."""

        def set_state(instance: Any, state: dict[str, Any]) -> None:
            instance.__dict__ = kind._shared_state
            self.device = state.get("device", self.device)
            if kind.__name__ == "GradientState":
                kind._shared_state.update(state)
                return
            if kind._shared_state:
                return
            if kind.__name__ == "PartialState":
                kind.__init__(instance, state["_cpu"])
            else:
                kind.__init__(
                    instance,
                    state["_mixed_precision"],
                    state["_cpu"],
                    dynamo_plugin=state["dynamo_plugin"],
                    _from_accelerator=True,
                )
            kind._shared_state.update({k: v for k, v in state.items() if k not in OF_A_PROCESS})

        def get_state(instance: Any) -> dict[str, Any]:
            if kind.__name__ == "GradientState":
                return dict(instance.__dict__)
            from accelerate.utils import DistributedType

            own = {"distributed_type": DistributedType.NO, **SINGLE_PROCESS}
            if self.device is not None:
                own["device"] = self.device
            return {**instance.__dict__, **own}

        self.patches.add(f"accelerate.state.{kind.__name__}.__setstate__", set_state)
        self.patches.add(f"accelerate.state.{kind.__name__}.__getstate__", get_state)

    def hide_process_group(self) -> None:
        """Let new states report a single process."""
        from accelerate.utils import DistributedType

        on_cpu = self.rank_device == "cpu"

        def single_process(init: Any) -> Any:
            @functools.wraps(init)
            def init_single_process(instance: Any, cpu: bool = False, **kwargs: Any) -> None:
                init(instance, cpu or on_cpu)  # the other arguments are for joining a group

            return init_single_process

        def no_backend(*args: Any, **kwargs: Any) -> tuple[None, Any]:
            return None, DistributedType.NO

        self.patches.wrap("accelerate.state.PartialState.__init__", single_process)
        self.patches.replace("accelerate.state.PartialState._prepare_backend", no_backend)


OF_A_PROCESS = frozenset({"device", "distributed_type", "debug", "fork_launched", *SINGLE_PROCESS})
"""Entries of a state that describe its process; a rank has its own."""


def _refuse_other_distributions(strategy: str, patches: PatchStack) -> None:
    def checked(init: Any) -> Any:
        @functools.wraps(init)
        def check(accelerator: Any, *args: Any, **kwargs: Any) -> None:
            for name in OWN_DISTRIBUTION:
                if (value := kwargs.get(name)) is not None:
                    refuse(f"Accelerator({name}=...)", strategy, line_for(name, value))
            init(accelerator, *args, **kwargs)

        return check

    patches.wrap("accelerate.Accelerator.__init__", checked)


def _dividing_gradients(divided: Any) -> Any:
    """Return an ``Accelerator.backward`` that divides the initial gradient, not the loss.

    accelerate divides the loss by the number of accumulated steps.  The gradients are the same,
    but a loss divided by a number that happens to be the rank's batch size would look like a mean
    over the samples of the rank.
    """
    import torch

    @functools.wraps(divided)
    def backward(accelerator: Any, loss: Any, **kwargs: Any) -> None:
        if kwargs or not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            divided(accelerator, loss, **kwargs)
            return
        scaler, steps = accelerator.scaler, accelerator.gradient_accumulation_steps
        root = loss if scaler is None else scaler.scale(loss)
        root.backward(None if steps == 1 else torch.full_like(root, 1 / steps))

    return backward


def _report_sharded_metrics(
    progress: TrainingProgress, recorder: Recorder, patches: PatchStack
) -> None:
    """Report metrics that are gathered in a training step: they cover only the rank's shard."""
    import torch

    def reporting(gather: Any) -> Any:
        @functools.wraps(gather)
        def reported(accelerator: Any, *args: Any, **kwargs: Any) -> Any:
            if progress.has_part and torch.is_grad_enabled():
                recorder.notice("sharded-metric", notices.SHARDED_METRIC)
            return gather(accelerator, *args, **kwargs)

        return reported

    for name in ("gather_for_metrics", "reduce"):
        patches.wrap(f"accelerate.Accelerator.{name}", reporting)


def _save_on_rank_0(rank_info: RankInfo, patches: PatchStack) -> None:
    """Let ``save_state`` return when rank 0 has written the files, in the folder that it chose."""
    patches.wrap("accelerate.Accelerator.save_state", lambda save: _saved(rank_info, save))


def _saved(rank_info: RankInfo, save: Any) -> Any:
    @functools.wraps(save)
    def saved(accelerator: Any, output_dir: Any = None, *args: Any, **kwargs: Any) -> Any:
        chosen = accelerator.project_configuration
        named = chosen.automatic_checkpoint_naming
        naming: AbstractContextManager[None] = nullcontext()
        if named and rank_info.shards_data and rank_info.rank == 0:
            naming = _naming_a_folder(accelerator)
        if rank_info.rank and named:  # accelerate would fail on rank 0's folder
            wait_for_rank_0("folder")
            folder = f"checkpoint_{accelerator.save_iteration}"
            output_dir = os.path.join(accelerator.project_dir, "checkpoints", folder)
            chosen.automatic_checkpoint_naming = False
        try:
            with naming:
                result = save(accelerator, output_dir, *args, **kwargs)
        finally:
            chosen.automatic_checkpoint_naming = named
        if rank_info.shards_data:
            wait_for_rank_0("state")
        return result

    return saved


@contextmanager
def _naming_a_folder(accelerator: Any) -> Iterator[None]:
    """Let other ranks continue when rank 0 has made a folder and deleted old ones.

    That is the point at which accelerate itself calls ``wait_for_everyone``.
    """
    patches = PatchStack()

    def waiting() -> None:
        patches.remove()
        wait_for_rank_0("folder")
        accelerator.wait_for_everyone()

    patches.replace("accelerate.Accelerator.wait_for_everyone", waiting, accelerator)
    with patches, writes.unpatched():
        yield


def _begin_steps_in_order(events: LoaderEventDispatcher, patches: PatchStack, iterate: str) -> None:
    """Let a loader that reads a batch ahead begin a batch's step when it yields the batch."""
    patches.wrap(iterate, lambda original: _in_order(events, original))


def _in_order(events: LoaderEventDispatcher, iterate: Any) -> Any:
    @functools.wraps(iterate)
    def in_order(loader: Any) -> Iterator[Any]:
        queue = EventQueue()
        batches = iterate(loader)
        unused = getattr(loader, "skip_batches", 0)
        try:
            while True:
                with events.collect(queue):
                    try:
                        batch = next(batches)
                    except StopIteration:
                        return
                for _ in range(unused):
                    events.discard_next_batch(queue)
                unused = 0
                events.dispatch_next_batch(queue)
                yield batch
        finally:
            batches.close()
            events.finish(queue)

    return in_order
