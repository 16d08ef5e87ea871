"""Check that all ranks call the same sharded modules in the same order.

Each of these calls gathers parameters.  Ranks that issue different ones would wait for
each other until the process group's timeout, or mix up their data.

Ranks of one machine do not wait for each other here: each publishes its calls in shared memory, and
the rank that comes to a call last sees whether it is the same on all of them, before it joins the
collective.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from torch.distributed import ProcessGroup

from nbmgpu.errors import SAME_STEPS_HINT, StrategyError, format_message
from nbmgpu.strategies import collectives
from nbmgpu.strategies.shared_memory import number_stream
from nbmgpu.system.shared_memory import STREAM_LENGTH

if TYPE_CHECKING:
    from nbmgpu.strategies.shared_memory.collectives import SharedMemoryCollectives

TIMEOUT = timedelta(minutes=5)
"""How long a rank waits for the others at the same call."""

BACKWARD = -1
"""The position of a call of ``backward()``; those in forward passes are 0 and above."""

END_OF_CELL = -2
"""The position of a rank that has finished the cell."""


NAMES = {BACKWARD: "backward()", END_OF_CELL: "the end of the cell"}

LARGEST = number_stream.LARGEST + BACKWARD
"""The largest position."""


def start_of_forward(module: int, is_outermost: bool) -> int:
    """Return the position of the start of a forward pass, given the number of its module."""
    return 3 * module + is_outermost


def end_of_forward(module: int) -> int:
    """Return the position of the end of an outermost forward pass."""
    return 3 * module + 2


def _number_of(position: int) -> int:
    return number_stream.END if position == END_OF_CELL else position - BACKWARD


def _position_of(number: int) -> int:
    return END_OF_CELL if number == number_stream.END else number + BACKWARD


def _is_outermost_start(position: int) -> bool:
    return position >= 0 and position % 3 == 1


class CallOrderCheck:
    """Compares positions of ranks, on the CPU, so that no rank waits for a GPU."""

    def __init__(
        self, strategy: str, group: ProcessGroup, remedy: str, in_memory: bool = False
    ) -> None:
        """Compare the ranks of ``group``.

        Args:
            strategy: the name of the strategy, for error messages.
            group: the ranks, a group of its own with ``TIMEOUT``.
            remedy: what to type where ranks run different modules.
            in_memory: whether to use shared memory if there is some; only for the one check of all
                ranks.
        """
        self.strategy = strategy
        self.group = group
        self.remedy = remedy
        self.in_memory = in_memory
        self._names = [""] * STREAM_LENGTH

    def check(self, position: int, name: str = "", wait: bool = False) -> None:
        """Make sure that all ranks make the same call, and make it themselves.

        On one machine, the last rank to come does.  Elsewhere this is collective.

        Args:
            position: a number for the call, the same on all ranks, at most ``LARGEST``.
            name: describes the position in the error message.
            wait: whether to wait for the other ranks, because no collective follows.

        Raises:
            StrategyError: another rank is at another position, or did not arrive in time.
            RankError: a rank that this one waits for has finished the cell.
        """
        name = name or NAMES[position]
        if self.in_memory and collectives.shared is not None:
            self._compare_in_memory(collectives.shared, position, name, wait)
            return
        try:
            positions = collectives.gather_numbers(position, self.group)
        except RuntimeError as error:
            raise self._different_modules(name) from error
        self._compare(position, positions, name)

    def _compare_in_memory(
        self, shared: SharedMemoryCollectives, position: int, name: str, wait: bool
    ) -> None:
        stream = shared.call_order
        difference = stream.check(_number_of(position), wait)
        self._names[stream.position % STREAM_LENGTH] = name
        if difference is not None:
            own, *others = map(_position_of, (difference.own, *difference.others))
            self._compare(own, others, self._names[difference.position % STREAM_LENGTH])

    def _compare(self, own: int, others: list[int], name: str) -> None:
        highest, lowest = max(own, *others), min(own, *others)
        if highest == lowest:
            return
        if lowest in NAMES and (highest in NAMES or _is_outermost_start(highest)):
            raise self._different_steps(name, None if own == lowest else NAMES[lowest])
        raise self._different_modules(name)

    def _different_steps(self, name: str, other: str | None) -> StrategyError:
        difference = "another rank is not" if other is None else f"another rank is at {other}"
        return StrategyError(
            format_message(
                f"Ranks did different numbers of steps: this rank is at {name}, and {difference}",
                f"Under {self.strategy} all ranks must run each forward and backward pass together",
                SAME_STEPS_HINT,
            )
        )

    def _different_modules(self, name: str) -> StrategyError:
        return StrategyError(
            format_message(
                f"Ranks run different modules: not all of them are at {name}",
                f"{self.strategy} gathers a module's parameters on all ranks at once; which "
                "modules run must not depend on a rank's shard of the batch",
                self.remedy,
            )
        )
