"""One DeepSpeed engine, in place beneath one unit of the cell.

The user's module, parameters and optimizers stay what and where they are.  DeepSpeed
gets the module, and an optimizer of ours that hands each step on to the cell's own:
it steps slices of parameters where DeepSpeed has flat partitions.
"""

from __future__ import annotations

import collections
import contextlib
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from nbmgpu.errors import StrategyError, format_message
from nbmgpu.strategies.replication import RunningStatistics
from nbmgpu.strategies.trainable import Trainable

from .initialization import assign_normal_tensors, initialize_engine
from .mixed_precision import HALVES, Casts
from .original_modules import Surface
from .parameter_gathering import STEPS, Gathering, forget_forward, roots
from .parameter_proxies import Partitioned, SpreadState, Watched, raw_grad
from .partition_layout import Layout
from .partitioned_state import Gradients, States

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from nbmgpu.strategies.base import Unit

TWICE = (
    "A parameter got its gradient twice in one backward pass, as under reentrant checkpoints",
    "DeepSpeed averages a gradient as soon as it arrives",
    "torch.utils.checkpoint.checkpoint(..., use_reentrant=False), or --strategy ddp",
)
OTHERS = (
    "The loss does not reach the same parameters on all ranks",
    "DeepSpeed averages gradients in the order in which they arrive",
    "%%mgpu --strategy ddp",
)


class Relay(torch.optim.Optimizer):
    """The optimizer that DeepSpeed steps.  It has the cell's groups, and steps through a home."""

    def __init__(self, home: Home, groups: list[dict[str, Any]]) -> None:
        """Stand for ``groups``; not known to anybody as an optimizer of the cell."""
        # Optimizer.__init__ is left out: nothing is to be set up, and nobody to be told.
        self.home = home
        self.defaults = {}
        self.state = collections.defaultdict(dict)
        self.param_groups = groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step the partitions that DeepSpeed has put into the groups."""
        for group in self.param_groups:
            for flat in group["params"]:
                self.home.step_partition(flat)


class Home:
    """What an engine holds of a unit, from its making until everything is whole again."""

    def __init__(self, unit: Unit, stage: int, config: dict[str, Any]) -> None:
        """Let DeepSpeed take the unit apart, as ``config`` says; collective."""
        self.unit = unit
        self.stage = stage
        self.optimizers = list(unit.optimizers)
        self.signature = signature(unit)
        self.whole = False
        self.shows_parts = False
        self._depth = 1
        self._turn: tuple[int, Callable[[], Any]] | None = None
        self._result: Any = None
        self._arrived: list[nn.Parameter] = []
        self._seen: set[int] = set()
        self.trainable = Trainable(unit)
        self._remember()
        half = next((h for key, h in HALVES.items() if key in config), None)
        self._casts = Casts(unit.modules, half)
        self._make_engine(config)
        self._casts.enter()
        self.layout = Layout(self.engine.optimizer, stage, self.trained)
        self.gradients = Gradients(self)
        self.states = States(self)
        self.statistics = RunningStatistics(unit)
        self._settle_in()
        self._depth = 0

    @property
    def busy(self) -> bool:
        """Whether DeepSpeed is at work, so that parameters shall show what it has made of them."""
        return self._depth > 0

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Let parameters show what DeepSpeed has made of them."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _remember(self) -> None:
        """Note how things are, to leave them so."""
        seen: dict[int, nn.Parameter] = {}
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                seen |= {id(p): p for p in group["params"] if p.requires_grad and p.numel()}
        self.trained = list(seen.values())
        self.surface = Surface(self.unit.modules)
        self.held, self.outer = self.surface.held, self.surface.outer

    def _make_engine(self, config: dict[str, Any]) -> None:
        grads = {id(p): raw_grad.__get__(p) for p in self.trained}
        for parameter in self.trained:
            raw_grad.__set__(parameter, None)
        self._first = grads
        # Before DeepSpeed's own hook, which takes the gradient away.
        self._hooks = [p.register_post_accumulate_grad_hook(self._arrive) for p in self.trained]
        self.gathering: Gathering | None = None
        if self.stage == 3:
            self.gathering = Gathering(self, self.surface.modules, self.held)
            self._hooks += self.gathering.hooks
        groups = [{"lr": 0.0, "params": list(self.trained)}]
        modules = self.unit.modules
        # In a container its hooks for timing are not on the user's module.  Stage 3 uses them.
        alone = self.stage == 3 and len(modules) == 1
        self.model = modules[0] if alone else nn.ModuleList(modules)
        self.engine = initialize_engine(self.model, Relay(self, groups), config)
        if self.stage == 3:
            assign_normal_tensors(self.engine.optimizer._get_param_coordinator())
            roots.append(self.model)
        self.surface.note_additions()

    def _settle_in(self) -> None:
        """Watch the parameters, and take in the gradients that they have."""
        for parameter in self.held if self.stage == 3 else self.trained:
            parameter.__class__ = Partitioned if self.stage == 3 else Watched
            parameter.home = self  # type: ignore[attr-defined]
        for parameter in self.trained:
            if (grad := self._first[id(parameter)]) is not None:
                self.gradients.write(parameter, grad)
        self._first = {}
        self.gradients.settle()

    @property
    def used(self) -> bool:
        """Whether a forward pass of stage 3 waits for its backward pass."""
        return self.gathering is not None and self.gathering.used

    def outer_dtype(self, parameter: nn.Parameter) -> torch.dtype:
        """Return the dtype that the cell knows the parameter by."""
        return self.outer[id(parameter)].dtype

    # The backward pass

    def same(self, number: int, otherwise: tuple[str, str, str]) -> None:
        """Refuse a number that other ranks do not have; collective."""
        both = torch.tensor([number, -number], dtype=torch.float64, device="cpu")
        dist.all_reduce(both, dist.ReduceOp.MAX)
        if both[0] != -both[1]:
            raise StrategyError(format_message(*otherwise))

    def check_call(self, number: int) -> None:
        """Refuse a call that is not one of all ranks; collective under stage 3."""
        if self.stage == 3:
            self.same(number, STEPS)

    def _arrive(self, parameter: nn.Parameter) -> None:
        if id(parameter) in self._seen:
            raise StrategyError(format_message(*TWICE))
        self._seen.add(id(parameter))
        self._arrived.append(parameter)

    def begin_backward(self) -> None:
        """Tell the engine that gradients will arrive."""
        self._arrived = []
        self._seen = set()
        gathering = self.gathering
        if gathering is not None:
            forget_forward()
        if gathering is not None and not gathering.used and not gathering.opened:
            gathering.open()  # the forward pass was before the engine, on whole parameters
        self._depth += 1
        engine = self.engine
        engine.optimizer.clear_backward_seen_flag()
        # What engine.backward(loss) does around its own call of loss.backward().
        engine._running_engine_backward = True
        engine._backward_prologue()

    def end_backward(self, scale: float) -> None:
        """Let the engine average what arrived, and add it over ``scale``; collective."""
        engine, optimizer = self.engine, self.engine.optimizer
        try:
            self._agree()
            if self._arrived:
                engine._backward_epilogue()
                arrived = {id(p): p for p in self._arrived}.values()
                self.gradients.add(arrived, self.layout.gradients(), scale)
            else:
                optimizer.backward_epilogue()
                optimizer.exit_backward()
            self._empty()
            if self.gathering is not None:
                self.gathering.used = False
            if self.stage == 3 and self.model not in self.unit.modules:
                # Nobody calls the container, whose forward pass would begin a new round.
                optimizer._get_param_coordinator().reset_step()
        finally:
            engine._running_engine_backward = False
            self._depth -= 1

    def _agree(self) -> None:
        """Refuse gradients that are not the same parameters' on all ranks, in the same order."""
        place = {id(p): i for i, p in enumerate(self.trained)}
        order = [place[id(p)] for p in self._arrived]
        if self.stage == 3:
            order = sorted(order)
        self.same(zlib.crc32(repr(order).encode()), OTHERS)

    def _empty(self) -> None:
        """Let the engine forget its gradients: the next backward pass is a first one."""
        optimizer = self.engine.optimizer
        optimizer.zero_grad(set_to_none=True)
        optimizer._epilogue_ran_this_backward = False
        if self.stage == 3:
            optimizer.micro_step_id = 0
            optimizer._offload_boundary_param_ids = set()
        else:
            optimizer.micro_step_id = -1  # its INITIAL_MICRO_STEP_ID
            optimizer._offload_accumulated_param_ids = set()

    # The step

    def step(self, optimizer: Optimizer, plain: Callable[[], Any]) -> Any:
        """Step one of the cell's optimizers through the engine; collective."""
        index = next(i for i, o in enumerate(self.optimizers) if o is optimizer)
        self.gradients.settle()
        self.settle_weights()
        self.states.take_in(index, optimizer)
        self.states.note_order(index, optimizer, self.gradients.present)
        with self.inside():
            scale = float(self.engine.optimizer.loss_scale)
            self.layout.place(
                self.gradients.flat if scale == 1 else [g * scale for g in self.gradients.flat]
            )
            self._turn, self._result = (index, plain), None
            try:
                self.engine.step()
            finally:
                self._turn = None
            self._empty()
        return self._result

    def step_partition(self, flat: Tensor) -> None:
        """Let the optimizer whose turn it is step its slices of a partition."""
        assert self._turn is not None
        number = next(i for i, m in enumerate(self.layout.masters) if m is flat)
        index, plain = self._turn
        groups = self.optimizers[index].param_groups
        chosen = [self._of_partition(group["params"], number, flat) for group in groups]
        with self._narrowed(index, chosen):
            self._result = plain()
        for piece in (piece for members in chosen for piece in members):
            if id(piece) not in self.outer:
                piece.grad = None

    def _of_partition(self, parameters: list[Any], number: int, flat: Tensor) -> list[Any]:
        """Return what stands for ``parameters`` in the step of a partition, with gradients."""
        assert flat.grad is not None
        found = []
        for parameter in parameters:
            place = self.layout.slices.get(id(parameter))
            if id(parameter) not in self.layout.slices:
                if number == 0:  # frozen; on one device it is stepped if a gradient is left
                    found.append(parameter)
            elif place is not None and place.partition == number:
                piece = self.states.pieces[id(parameter)]
                present = id(parameter) in self.gradients.present
                piece.grad = place.of(flat.grad) if present else None
                found.append(piece)
        return found

    @contextlib.contextmanager
    def _narrowed(self, index: int, chosen: list[list[Any]]) -> Iterator[None]:
        """Let an optimizer's groups be those of ``chosen`` slices, its state theirs."""
        optimizer: Any = self.optimizers[index]
        groups, state = optimizer.param_groups, optimizer.state
        members = [group["params"] for group in groups]
        optimizer.state = self.states.of[index]
        for group, slices in zip(groups, chosen, strict=True):
            group["params"] = slices
        try:
            yield
        finally:
            self.states.of[index] = optimizer.state
            optimizer.state = state
            for group, params in zip(groups, members, strict=True):
                group["params"] = params

    # What the cell reads and writes

    def settle_weights(self) -> None:
        """Take over what the cell has written into parameters."""
        if self.gathering is not None:
            self.gathering.close()
        else:
            self._rebind()
        with self.inside(), torch.no_grad():
            for master, model in zip(self.layout.masters, self.layout.models(), strict=True):
                if master.data_ptr() == model.data_ptr():
                    continue
                if master.dtype == model.dtype:
                    master.copy_(model)
                else:
                    differs = master.to(model.dtype).to(model.device) != model
                    moved = differs.to(master.device)
                    master.copy_(torch.where(moved, model.to(master), master))

    def _rebind(self) -> None:
        """Bring parameters whose ``.data`` is now other memory back into the flat partition."""
        optimizer = self.engine.optimizer
        for number, flat in enumerate(optimizer.bit16_groups_flat):
            members = optimizer.round_robin_bit16_groups[number]
            offsets = optimizer.round_robin_bit16_offsets[number]
            for parameter, offset in zip(members, offsets, strict=True):
                shape = self.layout.shapes[id(parameter)]
                view = flat.narrow(0, offset, shape.numel()).view(shape)
                if parameter.data.data_ptr() != view.data_ptr():
                    view.copy_(parameter.data)
                    parameter.data = view

    def refuse_copies(self) -> None:
        """Refuse to copy a module whose parameters lie on all ranks."""
        if self.stage == 3 and not self.busy:
            what = "Under stage 3 of DeepSpeed a model that trains cannot be copied or saved whole"
            allowed = "Its parameters lie on all ranks; model.state_dict() brings them together"
            raise StrategyError(
                format_message(what, allowed, "%%mgpu --strategy deepspeed_stage_2")
            )

    # The end

    def finish(self) -> None:
        """Bring everything together in the user's own objects; collective."""
        self.gradients.settle()
        self.settle_weights()
        states = [
            o.state if not isinstance(o.state, SpreadState) or o.state.whole
            else self.states.at_home(i)
            for i, o in enumerate(self.optimizers)
        ]  # fmt: skip
        with self.inside():
            weights = {}
            for parameter in self.trained:
                place = self.layout.slices[id(parameter)]
                part = place.of(self.layout.masters[place.partition]) if place else None
                whole = self.layout.join(parameter, part, torch.float32)
                weights[id(parameter)] = whole.to(self.outer_dtype(parameter))
            if self.gathering is not None:
                self.gathering.open()
                for parameter in self.held:
                    if parameter.dtype == self.outer_dtype(parameter):
                        weights.setdefault(id(parameter), parameter.data.clone())
                for held in self.held:
                    held.ds_active_sub_modules.clear()  # type: ignore[attr-defined]
            grads = {
                id(p): self.gradients._shown[id(p)][1] if id(p) in self.gradients._shown
                else self.layout.join(p, self.gradients.part(p), torch.float32)
                for p in self.trained if id(p) in self.gradients.present
            }  # fmt: skip
        self._leave(weights)
        for parameter in self.trained:
            if (grad := grads.get(id(parameter))) is not None:
                parameter.grad = grad.to(parameter)
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.state = collections.defaultdict(dict, dict(state.items()))

    def abandon(self) -> None:
        """Take everything off without asking other ranks: the cell failed, or a rank is gone."""
        if self.whole:
            return
        self._depth += 1
        kept = {} if self.stage == 3 else {id(p): p.data.clone() for p in self.trained}
        self._leave(kept)
        for optimizer in self.optimizers:
            if isinstance(optimizer.state, SpreadState):
                optimizer.state = collections.defaultdict(dict)

    def _leave(self, weights: dict[int, Tensor]) -> None:
        """Take the engine off the user's objects, which get ``weights``."""
        self._depth += 1
        self.whole = True
        for hook in self._hooks:
            hook.remove()
        self.engine.destroy()
        if self.stage == 3:
            roots[:] = [m for m in roots if m is not self.model]
            forget_forward()
        self.surface.restore(weights)
        self._casts.leave()


def signature(unit: Unit) -> list[Any]:
    """Return what tells one composition of optimizers and parameters from another."""
    return [
        (id(o), [[id(p) for p in group["params"]] for group in o.param_groups])
        for o in unit.optimizers
    ]
