"""The strategy picker widget; ``labextension/src/picker`` draws it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from nbmgpu.advisor.model_advisor import ModelAdvisor
from nbmgpu.advisor.picker_state import PickerController, describe

from .assets import script, style

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

__all__ = ["Picker", "describe_cell", "picker"]


class Picker(anywidget.AnyWidget):
    """Shows strategies for one model, and the ``%%mgpu`` line of the selected one.

    ``state`` is a ``nbmgpu.advisor.picker_state.PickerState``; ``line`` is the line selected in the
    browser. Messages ``{"kind": "choose", "controls": {...}}`` request a new state.
    """

    _esm = script("picker")
    _css = style("picker")

    state = traitlets.Dict().tag(sync=True)
    line = traitlets.Unicode().tag(sync=True)

    def __init__(self, controller: PickerController) -> None:
        """Show the state of ``controller``."""
        self._controller = controller
        state = controller.state()
        line = state.advice.line if state.advice else ""
        super().__init__(state=state.plain(), line=line)
        self.on_msg(self._receive)

    def _receive(self, _widget: object, message: dict[str, Any], _buffers: object) -> None:
        match message:
            case {"kind": "choose", "controls": dict(controls)}:
                self.state = self._controller.choose(controls).plain()

    def __repr__(self) -> str:
        """Return the recommendation for front ends without widgets."""
        advice = self._controller.state().advice
        return repr(advice) if advice else "Picker"


def picker(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    batch: Any = None,
    *,
    loader: DataLoader[Any] | None = None,
) -> Picker:
    """Show the memory and cost of each strategy for ``model``, and let the user select one.

    Args:
        model: the model to train.
        optimizer: its optimizer; Adam is assumed without one.
        batch: a batch, ``(samples, tokens)`` of a language model, or the DataLoader; required to
            estimate activations.
        loader: a DataLoader to take a batch from, instead of ``batch``.

    Returns:
        The widget; ``line`` is the ``%%mgpu`` line of the selected strategy.

    Raises:
        OptionError: An argument is invalid.
    """
    return Picker(PickerController(ModelAdvisor(model, optimizer, batch, loader)))


def describe_cell(source: str, controls: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the picker state for the cell ``source`` of this kernel's notebook, as plain data.

    The cell is not run; the notebook's objects and random states do not change, and torch is not
    imported if the notebook has not imported it.
    """
    from IPython import get_ipython

    shell = get_ipython()
    namespace = {} if shell is None else shell.user_ns
    transform = None if shell is None else shell.transform_cell
    return describe(source, namespace, controls, transform).plain()
