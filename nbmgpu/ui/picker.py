"""The strategy picker in the output of a cell; ``labextension/src/picker`` draws it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from nbmgpu.advisor.advisor import Consultation
from nbmgpu.advisor.picker_state import Picking, describe

from .assets import script, style

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

__all__ = ["Picker", "describe_cell", "picker"]


class Picker(anywidget.AnyWidget):
    """Shows strategies for one model, and what is to be written above the cell.

    ``state`` is a ``nbmgpu.advisor.picker_state.PickerState``; ``line`` is the line that is chosen
    in the browser.  Messages ``{"kind": "choose", "controls": {...}}`` bring a new state.
    """

    _esm = script("picker")
    _css = style("picker")

    state = traitlets.Dict().tag(sync=True)
    line = traitlets.Unicode().tag(sync=True)

    def __init__(self, picking: Picking) -> None:
        """Show what ``picking`` knows."""
        self._picking = picking
        state = picking.state()
        line = state.advice.line if state.advice else ""
        super().__init__(state=state.plain(), line=line)
        self.on_msg(self._receive)

    def _receive(self, _widget: object, message: dict[str, Any], _buffers: object) -> None:
        match message:
            case {"kind": "choose", "controls": dict(controls)}:
                self.state = self._picking.choose(controls).plain()

    def __repr__(self) -> str:
        """Say what the picker says, where widgets cannot be shown."""
        advice = self._picking.state().advice
        return repr(advice) if advice else "Picker"


def picker(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    batch: Any = None,
    *,
    loader: DataLoader[Any] | None = None,
) -> Picker:
    """Show what each strategy would hold and cost for ``model``, to choose from.

    Args:
        model: what is to be trained.
        optimizer: its optimizer; Adam is assumed without one.
        batch: a batch, ``(samples, tokens)`` of a language model, or the DataLoader: activations
            are counted with it.
        loader: where a batch can be had from, instead.

    Returns:
        The widget; ``line`` is the ``%%mgpu`` line of what is chosen.

    Raises:
        OptionError: an argument is not what it should be.
    """
    consultation = Consultation(model, optimizer, batch, loader)
    return Picker(Picking(consultation))


def describe_cell(source: str, controls: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what a picker shows for the cell ``source`` of this kernel's notebook, as JSON has it.

    Nothing of the cell is run; the notebook's objects and random states stay as they are, and
    torch is not imported if the notebook has not.
    """
    from IPython import get_ipython

    shell = get_ipython()
    namespace = {} if shell is None else shell.user_ns
    transform = None if shell is None else shell.transform_cell
    return describe(source, namespace, controls, transform).plain()
