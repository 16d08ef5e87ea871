"""Check that all ranks make the same calls in the same order.

DeepSpeed issues collectives in forward and backward passes.  Ranks that issue different ones would
wait for each other forever, or mix up their data.
"""

from __future__ import annotations

from nbmgpu.errors import SAME_STEPS_HINT, StrategyError, format_message
from nbmgpu.strategies import collectives
from nbmgpu.strategies.shared_memory.number_stream import END

FORWARD = 1 << 39
BACKWARD = 1 << 40
END_OF_CELL = END
"""Numbers of calls; modules have small ones."""

LARGEST_MODULE = 1 << 20
"""Upper bound of the numbers of modules; those of other calls are larger."""

Message = tuple[str, str, str]
"""What happened, what is allowed, what to type instead."""

DIFFERENT_STEPS: Message = (
    "Ranks did different numbers of steps: not all of them are at the same forward or backward "
    "pass",
    "Stage 3 of DeepSpeed runs each forward and backward pass on all ranks together",
    SAME_STEPS_HINT,
)
DIFFERENT_MODULES: Message = (
    "The forward pass runs different modules on different ranks",
    "Under stage 3 of DeepSpeed all ranks must run the same modules in the same order",
    "%%mgpu --strategy ddp",
)
DIFFERENT_GRADIENTS: Message = (
    "The loss does not reach the same parameters on all ranks",
    "DeepSpeed averages gradients in the order in which they arrive",
    "%%mgpu --strategy ddp",
)


def check_same_on_all_ranks(number: int, message: Message, wait: bool = False) -> None:
    """Compare ``number`` with that of the other ranks.

    On one machine, the last rank to come does.  Elsewhere this is collective.

    Args:
        number: of a call.
        message: of the error.
        wait: whether to wait for the other ranks, because no collective follows.

    Raises:
        StrategyError: with ``message``, if another rank has another number; with
            ``DIFFERENT_MODULES``, if a rank is at a module inside a forward pass.
    """
    if (memory := collectives.shared) is not None:
        if (difference := memory.call_order.check(number, wait)) is None:
            return
        numbers = [difference.own, *difference.others]
    else:
        numbers = collectives.gather_numbers(number)
    if max(numbers) != min(numbers):
        inside_forward = min(numbers) < LARGEST_MODULE
        raise StrategyError(format_message(*(DIFFERENT_MODULES if inside_forward else message)))
