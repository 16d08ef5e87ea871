"""Parameters, gradients, buffers and optimizer states on their devices, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from nbmgpu.errors import StrategyError, format_message

from .transfer import tensors_in

PLAIN = (Tensor, nn.Parameter, nn.Buffer)
"""Types of tensors whose whole content is their ``data``."""


@dataclass(frozen=True)
class Place:
    """Where a tensor is, and where it was.

    Attributes:
        device: where it is.
        address: of its data there; others have moved it if it has changed.
        original_device: where it was.
        original: its data there, in the memory of the host; None if it was on a GPU, whose memory
            others may use meanwhile.
    """

    device: torch.device
    address: int
    original_device: torch.device
    original: Tensor | None


class Placement:
    """Moves tensors in place, so that everything that refers to them still does."""

    def __init__(self) -> None:
        """Begin with no tensors."""
        self._places: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def device_of(self, tensor: Tensor) -> torch.device | None:
        """Return where ``tensor`` has been put; None if it has not."""
        place = self._place_of(tensor)
        return None if place is None else place.device

    def _place_of(self, tensor: Tensor) -> Place | None:
        place: Place | None = self._places.get(tensor)
        return place

    @torch.no_grad()
    def put(
        self, tensor: Tensor, device: torch.device, original_device: torch.device | None = None
    ) -> None:
        """Put ``tensor`` and its gradient on ``device``.

        Args:
            tensor: a leaf of autograd's graphs; others follow from leaves.
            device: where to put it.
            original_device: where ``restore`` puts it; None for where it is now.

        Raises:
            StrategyError: it is of a class of its own, such as quantized weights.
        """
        place = self._place_of(tensor)
        if place is not None and (place.device, place.address) == (device, tensor.data_ptr()):
            if original_device is not None:
                self._places[tensor] = Place(device, place.address, original_device, None)
            return
        if not tensor.is_leaf or tensor.device.type == "meta":
            return
        data, before = tensor.data, tensor.device
        original = data if before.type == "cpu" else None
        if data.device != device:
            if type(tensor) not in PLAIN:
                raise _cannot_move(tensor)
            _move(tensor, device)
        elif place is not None:  # the cell has given it other data there
            before, original = place.original_device, place.original
        if original_device is not None:
            before, original = original_device, None
        self._places[tensor] = Place(device, tensor.data_ptr(), before, original)

    def put_states(self, optimizer: Optimizer) -> None:
        """Put the states of ``optimizer`` where their parameters are."""
        for parameter, states in _states(optimizer):
            if (device := self.device_of(parameter)) is not None:
                for state in states:
                    self.put(state, device)

    @torch.no_grad()
    def restore(self, optimizers: Iterable[Optimizer]) -> None:
        """Put everything where it was, and states that are new where their parameters were.

        A tensor for which there is no memory stays where it is: results are read from any GPU.
        """
        for optimizer in optimizers:
            for parameter, states in _states(optimizer):
                if (place := self._place_of(parameter)) is not None:
                    for state in states:
                        if state not in self._places:
                            _move_if_it_fits(state, place.original_device)
        for tensor, place in list(self._places.items()):
            original = place.original
            if original is not None and _is_like(tensor, original):
                original.copy_(tensor.data)  # views of this memory see it
                tensor.data = original
                _move_gradient(tensor, place.original_device)
            else:
                _move_if_it_fits(tensor, place.original_device)
        self._places.clear()


def _states(optimizer: Optimizer) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Yield each parameter with the state that is on its device.

    As in ``Optimizer.load_state_dict``, the number of steps is there only if the optimizer is
    capturable or fused.
    """
    for group in optimizer.param_groups:
        with_step = group.get("capturable") or group.get("fused")
        for parameter in group["params"]:
            if parameter in optimizer.state:
                state = optimizer.state[parameter]
                values = [v for k, v in state.items() if k != "step" or with_step]
                yield parameter, [*tensors_in(values)]


def _move(tensor: Tensor, device: torch.device) -> None:
    """Move ``tensor`` and its gradient in place.

    Raises:
        StrategyError: a transform of ``torch.func`` runs, in which nothing can move.
    """
    try:
        tensor.data = tensor.data.to(device)
    except RuntimeError as error:
        if "functorch" not in str(error):
            raise
        what = "The first call of a model is inside torch.func, where mp cannot spread it"
        instead = "model(x) once, before torch.func is used"
        raise StrategyError(format_message(what, instead=instead)) from error
    _move_gradient(tensor, device)


def _move_if_it_fits(tensor: Tensor, device: torch.device) -> None:
    with suppress(torch.OutOfMemoryError):
        _move(tensor, device)


def _move_gradient(tensor: Tensor, device: torch.device) -> None:
    if tensor.grad is not None:
        tensor.grad.data = tensor.grad.data.to(device)


def _is_like(tensor: Tensor, original: Tensor) -> bool:
    return tensor.shape == original.shape and tensor.dtype == original.dtype


def _cannot_move(tensor: Tensor) -> StrategyError:
    return StrategyError(
        format_message(
            f"The model has parameters of class {type(tensor).__name__}, which mp cannot move",
            "Load such a model with device_map=, in the cell: mp leaves it where it is",
            'from_pretrained(..., device_map="auto")',
        )
    )
