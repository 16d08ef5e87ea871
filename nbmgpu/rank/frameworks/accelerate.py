"""accelerate in a rank: alone on one device, so that the rank's taps distribute its loops.

``accelerate.Accelerator()`` would see the process group and distribute by itself: wrap the
model, give each rank other batches, pad the last one.  Here it is told of no distribution,
and its loaders, its backward passes and its clipping reach the taps like anybody's.  Under
``--strategy none`` it sees the group, as it would under torchrun.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from nbmgpu.errors import StrategyError, compose
from nbmgpu.rank.data.read_ahead import Queue
from nbmgpu.rank.files import writes
from nbmgpu.rank.reporting import notices
from nbmgpu.rank.session import Session
from nbmgpu.rank.store.broadcast import after_rank_0

OWN_DISTRIBUTION = ("deepspeed_plugin", "fsdp_plugin", "megatron_lm_plugin", "parallelism_config")
"""Arguments of ``Accelerator`` with which a cell distributes by itself."""

ALONE = {
    "num_processes": 1,
    "process_index": 0,
    "local_process_index": 0,
    "backend": None,
}
"""What accelerate's state says in a process that belongs to no group."""


def tap(session: Session) -> None:
    """Let accelerate believe what the strategy wants it to."""
    from accelerate import data_loader, state

    if session.strategy.device == "cpu":
        # Without it accelerate takes gloo for no distribution at all, and ranks train alone.
        os.environ["ACCELERATE_USE_CPU"] = "true"
    states = _States(session)
    for kind in (state.PartialState, state.AcceleratorState, state.GradientState):
        states.adopt(kind)
    if distributes_by_itself(session):
        return
    states.hide_the_group()
    _refuse_other_distributions(session)
    _divide_gradients_not_losses()
    _tell_of_shares(session)
    _save_in_one_place(session)
    for loader in ("DataLoaderShard", "DataLoaderDispatcher", "SkipDataLoader"):
        _hand_out_in_time(session, getattr(data_loader, loader))


def distributes_by_itself(session: Session) -> bool:
    """Tell whether the cell is left to distribute its training on its own."""
    return session.strategy.profile.name == "none"


class _States:
    """accelerate's states: one ``__dict__`` per class, shared by all instances of a process.

    Those that come from the notebook join the rank's own, and go back as they came where
    they speak of the process and not of the training.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.device: Any = None

    def adopt(self, kind: Any) -> None:
        """Let instances of ``kind`` that come with the bundle be instances of this process."""

        def take(instance: Any, state: dict[str, Any]) -> None:
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

        def give(instance: Any) -> dict[str, Any]:
            if kind.__name__ == "GradientState":
                return dict(instance.__dict__)
            from accelerate.utils import DistributedType

            own = {"distributed_type": DistributedType.NO, **ALONE}
            if self.device is not None:
                own["device"] = self.device
            return {**instance.__dict__, **own}

        kind.__setstate__, kind.__getstate__ = take, give

    def hide_the_group(self) -> None:
        """Let new states say that there is one process."""
        from accelerate.state import PartialState
        from accelerate.utils import DistributedType

        begin = PartialState.__init__
        on_cpu = self.session.strategy.device == "cpu"

        @functools.wraps(begin)
        def alone(instance: Any, cpu: bool = False, **kwargs: Any) -> None:
            begin(instance, cpu or on_cpu)  # what else there is says how to join a group

        def no_backend(*args: Any, **kwargs: Any) -> tuple[None, Any]:
            return None, DistributedType.NO

        PartialState.__init__ = alone
        PartialState._prepare_backend = no_backend


OF_A_PROCESS = frozenset({"device", "distributed_type", "debug", "fork_launched", *ALONE})
"""What a state says of its process; the rank has its own."""


def _refuse_other_distributions(session: Session) -> None:
    from accelerate import Accelerator

    begin = Accelerator.__init__

    @functools.wraps(begin)
    def checked(accelerator: Any, *args: Any, **kwargs: Any) -> None:
        for name in OWN_DISTRIBUTION:
            if kwargs.get(name) is not None:
                refuse(session, f"Accelerator({name}=...)")
        begin(accelerator, *args, **kwargs)

    Accelerator.__init__ = checked


def refuse(session: Session, what: str) -> None:
    """Refuse a distribution that the cell has chosen beside the strategy.

    Raises:
        StrategyError: always.
    """
    name = session.strategy.profile.name
    raise StrategyError(
        compose(
            f"{what} chooses a distribution in the cell, and --strategy {name} another one",
            "Leave it out and choose by --strategy (fsdp, zero2, deepspeed_stage_2, ...), or let "
            "the cell distribute by itself",
            "%%mgpu --strategy none",
        )
    )


def _divide_gradients_not_losses() -> None:
    """Let ``accelerator.backward`` divide by the accumulated steps what the pass starts from.

    The gradients are the same.  A loss divided by a number that happens to be the size of
    the rank's share would look like a mean over the share.
    """
    import torch
    from accelerate import Accelerator

    divided = Accelerator.backward

    @functools.wraps(divided)
    def backward(accelerator: Any, loss: Any, **kwargs: Any) -> None:
        if kwargs or not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            divided(accelerator, loss, **kwargs)
            return
        scaler, steps = accelerator.scaler, accelerator.gradient_accumulation_steps
        root = loss if scaler is None else scaler.scale(loss)
        root.backward(None if steps == 1 else torch.full_like(root, 1 / steps))

    Accelerator.backward = backward


def _tell_of_shares(session: Session) -> None:
    """Say that what is gathered in a training step is the rank's share of the batch."""
    import torch
    from accelerate import Accelerator

    def telling(gather: Any) -> Any:
        @functools.wraps(gather)
        def told(accelerator: Any, *args: Any, **kwargs: Any) -> Any:
            share = session.share
            if share is not None and share.is_part and torch.is_grad_enabled():
                session.recorder.notice("metric-share", notices.METRIC_SHARE)
            return gather(accelerator, *args, **kwargs)

        return told

    for name in ("gather_for_metrics", "reduce"):
        setattr(Accelerator, name, telling(getattr(Accelerator, name)))


def _save_in_one_place(session: Session) -> None:
    """Let ``save_state`` end when rank 0 has written the files, in the folder that it chose."""
    from accelerate import Accelerator

    save = Accelerator.save_state

    @functools.wraps(save)
    def saved(accelerator: Any, output_dir: Any = None, *args: Any, **kwargs: Any) -> Any:
        chosen = accelerator.project_configuration
        named = chosen.automatic_checkpoint_naming
        alone: AbstractContextManager[None] = nullcontext()
        if named and session.distributes:
            alone = _naming_a_folder(accelerator) if session.rank == 0 else nullcontext()
        if session.rank and named:  # it would find rank 0's folder in its way
            after_rank_0("folder")
            folder = f"checkpoint_{accelerator.save_iteration}"
            output_dir = os.path.join(accelerator.project_dir, "checkpoints", folder)
            chosen.automatic_checkpoint_naming = False
        try:
            with alone:
                result = save(accelerator, output_dir, *args, **kwargs)
        finally:
            chosen.automatic_checkpoint_naming = named
        if session.distributes:
            after_rank_0("state")
        return result

    Accelerator.save_state = saved


@contextmanager
def _naming_a_folder(accelerator: Any) -> Iterator[None]:
    """Let the others go on when rank 0 has a folder, and has deleted old ones alone.

    That is where accelerate itself waits for everyone.
    """

    def waiting() -> None:
        del accelerator.wait_for_everyone
        after_rank_0("folder")
        accelerator.wait_for_everyone()

    accelerator.wait_for_everyone = waiting
    try:
        with writes.apart():
            yield
    finally:
        vars(accelerator).pop("wait_for_everyone", None)


def _hand_out_in_time(session: Session, kind: Any) -> None:
    """Let a loader that looks ahead begin a batch's step when it hands the batch out."""
    iterate = kind.__iter__

    @functools.wraps(iterate)
    def in_time(loader: Any) -> Iterator[Any]:
        queue, ahead = Queue(), session.ahead
        batches = iterate(loader)
        unused = getattr(loader, "skip_batches", 0)
        try:
            while True:
                with ahead.into(queue):
                    try:
                        batch = next(batches)
                    except StopIteration:
                        return
                for _ in range(unused):
                    ahead.drop_next(queue)
                unused = 0
                ahead.begin_next(queue)
                yield batch
        finally:
            batches.close()
            ahead.end(queue)

    kind.__iter__ = in_time
