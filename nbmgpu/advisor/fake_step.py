"""A training step without memory: how much a forward and a backward pass would hold.

A copy of the model is made of fake tensors (``torch._subclasses.FakeTensorMode``), which
have a shape and no numbers, and a batch of them goes forward and backward through it.
Every tensor that comes into being is counted until it dies.  The model itself is not
touched: not its parameters, gradients, modes or hooks, and no random number is drawn.
A model of 70 billion parameters costs some seconds and no memory.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import warnings
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from nbmgpu.environment import random_state

if TYPE_CHECKING:
    from nbmgpu.strategies.strategy_options import Precision

TALL = 8
"""Layers from which on a stack is not played in full."""

FEW = 2
"""Layers that are played of a tall stack; and then twice as many."""

CAST = torch.ops.aten._to_copy.default

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class CannotRehearseError(Exception):
    """The model does not run on fake tensors; the text says what it met."""


@dataclass(frozen=True)
class Rehearsal:
    """What one step held at most; bytes.

    Attributes:
        samples: rows of the batch.
        kept: activations and inputs when the backward pass begins.
        alone: activations, inputs and what is on the way, beside parameters and gradients.
        together: the same and the gradients, as these arrive while activations go.
        outputs: what the model returns; a cell may let go of it before the backward pass.
        bare_kept, bare_alone: as ``kept`` and ``alone``, without the copies of parameters in half
            precision that autocast keeps; sharded parameters are cast as they are gathered.
        layers: 0, or of how many layers the numbers of a few were drawn out to.
    """

    samples: int
    kept: int
    alone: int
    together: int
    outputs: int
    bare_kept: int
    bare_alone: int
    layers: int = 0


def rehearse(
    model: nn.Module,
    batch: Any,
    samples: int,
    precision: Precision | None = None,
    checkpointing: bool = False,
) -> Rehearsal:
    """Play a step of ``model`` with a batch like ``batch``, of ``samples`` rows.

    A long stack of equal layers is played with a few of them, and the rest drawn out.

    Raises:
        CannotRehearseError: the model needs numbers, or cannot be called with the batch.
    """
    part = functools.partial(_rehearse, model, batch, samples, precision, checkpointing)
    before = random_state.capture()
    try:
        with warnings.catch_warnings(), _quiet():
            warnings.simplefilter("ignore")
            layers = _stack_height(model)
            if layers >= TALL:
                with contextlib.suppress(Exception):  # it counts its layers elsewhere, too
                    return _drawn_out(part(FEW), part(2 * FEW), layers)
            return part(0)
    except Exception as error:
        said = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
        raise CannotRehearseError(reason) from error
    finally:
        random_state.restore(before)


def _rehearse(
    model: nn.Module,
    batch: Any,
    samples: int,
    precision: Precision | None,
    checkpointing: bool,
    layers: int,
) -> Rehearsal:
    from torch._subclasses.fake_tensor import FakeTensorMode

    fake = FakeTensorMode(allow_non_fake_inputs=True)
    actor = _fake_copy(model, fake)
    if layers:
        stack = _stack(actor)
        assert stack is not None
        del stack[layers:]
    if checkpointing:
        _checkpoint(actor)
    with fake, torch.enable_grad():
        return _play(actor, _resized(batch, samples), samples, precision)


def _stack(model: nn.Module) -> nn.ModuleList | None:
    """Return the only list of equal layers in ``model``, if there is one and no other."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) >= TALL]
    if len(lists) != 1:
        return None
    shapes = {(type(m), tuple(p.shape for p in m.parameters())) for m in lists[0]}
    return lists[0] if len(shapes) == 1 else None


def _stack_height(model: nn.Module) -> int:
    stack = _stack(model)
    return 0 if stack is None else len(stack)


def _drawn_out(few: Rehearsal, more: Rehearsal, layers: int) -> Rehearsal:
    """Return what ``layers`` would hold, if ``FEW`` and twice as many hold this."""

    def to(first: int, second: int) -> int:
        return first + (second - first) * (layers - FEW) // FEW

    alone = to(few.alone, more.alone)
    together = max(alone, to(few.together, more.together))
    kept, outputs = to(few.kept, more.kept), to(few.outputs, more.outputs)
    bare = to(few.bare_kept, more.bare_kept), to(few.bare_alone, more.bare_alone)
    return Rehearsal(few.samples, kept, alone, together, outputs, *bare, layers)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what fake tensors log about operators from the notebook: the advice says it."""
    import logging

    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def _fake_copy(model: nn.Module, fake: Any) -> nn.Module:
    """Copy ``model`` as it would train, with fake tensors on the CPU and without hooks."""
    if any(is_lazy(p) for p in model.parameters()):
        raise ValueError("it has lazy modules, whose shapes are known after a forward pass")
    memo: dict[int, Any] = {}
    with fake:
        for tensor in (*model.parameters(), *model.buffers(), *_other_tensors(model)):
            if id(tensor) not in memo:
                memo[id(tensor)] = _fake_like(tensor)
    actor: nn.Module = copy.deepcopy(model, memo)
    for module in actor.modules():
        module._forward_hooks.clear()
        module._backward_hooks.clear()
        module._backward_pre_hooks.clear()
        for key, hook in list(module._forward_pre_hooks.items()):
            if not type(hook).__module__.startswith("torch."):  # weight_norm and its like stay
                del module._forward_pre_hooks[key]
    return actor.train()


def _other_tensors(model: nn.Module) -> Iterator[Tensor]:
    """Yield tensors that modules hold as plain attributes, and gradients."""
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor):
                yield value


def _fake_like(tensor: Tensor) -> Tensor:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made


def _checkpoint(actor: Any) -> None:
    """Let blocks recompute, the same that ``--checkpointing`` finds."""
    from torch.utils.checkpoint import checkpoint

    from nbmgpu.strategies.repeated_blocks import blocks

    if getattr(actor, "supports_gradient_checkpointing", False):
        actor.gradient_checkpointing_enable({"use_reentrant": False})
        return
    for block in blocks(actor):
        block.forward = functools.partial(
            checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False
        )


def _resized(batch: Any, samples: int) -> Any:
    """Return a batch of fake tensors like ``batch``, with ``samples`` rows."""
    rows = rows_of(batch)

    def resize(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        shape = list(value.shape)
        if shape and shape[0] == rows:
            shape[0] = samples
        return torch.zeros(shape, dtype=value.dtype)

    return tree_map(resize, dict(batch) if isinstance(batch, Mapping) else batch)


def rows_of(batch: Any) -> int:
    """Return the number of samples in a batch: the first size of its first tensor."""
    values = dict(batch) if isinstance(batch, Mapping) else batch
    sizes = [int(t.shape[0]) for t in tree_leaves(values) if isinstance(t, Tensor) and t.dim()]
    return sizes[0] if sizes else 1


def _play(actor: nn.Module, batch: Any, samples: int, precision: str | None) -> Rehearsal:
    ledger = Ledger(actor)
    ledger.note(batch)
    half = HALVES.get(precision or "")
    with ledger:
        with torch.autocast("cpu", half, enabled=half is not None):
            output, targets = call(actor, batch)
        loss = _loss(output, targets)
        kept, bare = ledger.live, ledger.live - ledger.casts
        outputs = sum(t.untyped_storage().nbytes() for t in tensors_in(output))
        loss.backward()
    return Rehearsal(samples, kept, ledger.alone, ledger.together, outputs, bare, ledger.bare)


def call(model: Any, batch: Any) -> tuple[Any, Any]:
    """Call ``model`` with ``batch`` as cells do; return its output, and the targets.

    A Lightning module takes a training step; a mapping becomes keywords; of several
    tensors the first is the input and the last the target, unless the model wants all.
    """
    if hasattr(model, "training_step") and hasattr(model, "configure_optimizers"):
        model.log = model.log_dict = lambda *_, **__: None
        return model.training_step(batch, 0), None
    if isinstance(batch, Mapping):
        return model(**batch), batch.get("labels")
    if not isinstance(batch, list | tuple):
        return model(batch), None
    if len(batch) == 1:
        return model(batch[0]), None
    try:
        return model(*batch[:-1]), batch[-1]
    except TypeError:
        return model(*batch), None


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors inside ``value``, which may be an output of transformers."""
    values = dict(value) if isinstance(value, Mapping) else value
    return [t for t in tree_leaves(values) if isinstance(t, Tensor)]


def _loss(output: Any, targets: Any) -> Tensor:
    """Return a loss as a cell would compute it: the model's own, cross entropy, or squares."""
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own
    found = [t for t in tensors_in(output) if t.requires_grad]
    if not found:
        raise ValueError("what it returns does not depend on anything that trains")
    first = found[0].float()
    if isinstance(targets, Tensor) and first.dim() > 0:
        if not targets.is_floating_point() and first.dim() == targets.dim() + 1:
            if first.dim() > 2 and first.shape[:-1] == targets.shape:  # classes come last
                first, targets = first.flatten(0, -2), targets.flatten()
            return nn.functional.cross_entropy(first, targets.long())
        if first.shape == targets.shape:
            return nn.functional.mse_loss(first, targets.float())
    return torch.stack([t.float().square().mean() for t in found]).sum()


class Ledger(TorchDispatchMode):
    """Counts the bytes of all tensors that come into being, until they die.

    ``live`` is what there is, without gradients; ``alone`` and ``together`` are the most
    there was, without and with them.  ``casts`` are copies of parameters in another dtype,
    of those that live, and ``bare`` is the most there was without gradients and these.
    """

    def __init__(self, model: nn.Module) -> None:
        """Know ``model``, whose own tensors do not count."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.alone = self.together = self.bare = 0
        self.live = self.casts = self._gradients = 0
        self._cast: set[int] = set()
        self._parameters = {p.untyped_storage()._cdata for p in model.parameters()}
        self._known: dict[int, bool] = {}
        self._guards: list[Any] = []
        for tensor in (*model.parameters(), *model.buffers(), *_other_tensors(model)):
            self._known[tensor.untyped_storage()._cdata] = False
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._arrived)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do what is asked, and count what comes of it."""
        result = func(*args, **(kwargs or {}))
        if func is CAST and args[0].untyped_storage()._cdata in self._parameters:
            key = result.untyped_storage()._cdata
            if key not in self._known:
                self._cast.add(key)
                self.casts += result.untyped_storage().nbytes()
        self.note(result)
        return result

    def note(self, value: Any) -> None:
        """Count the tensors in ``value`` that are new."""
        for tensor in tree_leaves(value):
            if isinstance(tensor, Tensor):
                self._enter(tensor)
        self.alone = max(self.alone, self.live)
        self.together = max(self.together, self.live + self._gradients)
        self.bare = max(self.bare, self.live - self.casts)

    def _enter(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes()
        self._known[key] = False
        self.live += size
        self._guards.append(weakref.finalize(storage, self._leave, key, size))
        self._guards[-1].atexit = False

    def _leave(self, key: int, size: int) -> None:
        if self._known.pop(key):
            self._gradients -= size
            return
        self.live -= size
        if key in self._cast:
            self._cast.remove(key)
            self.casts -= size

    def _arrived(self, parameter: nn.Parameter) -> None:
        """Count from now on among the gradients what has become one."""
        if parameter.grad is None or parameter.grad.is_sparse:
            return
        storage = parameter.grad.untyped_storage()
        if self._known.get(storage._cdata) is False:
            self._known[storage._cdata] = True
            self.live -= storage.nbytes()
            self._gradients += storage.nbytes()
