"""Check that all ranks call the same sharded modules in the same order.

Each of these calls gathers parameters.  Ranks that issue different ones would wait for
each other until the process group's timeout, or mix up their data.
"""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import ProcessGroup

from nbmgpu.errors import SAME_STEPS_HINT, RankError, StrategyError, format_message
from nbmgpu.strategies.all_reduce import can_share_memory, gather_numbers

TIMEOUT = timedelta(minutes=5)
"""How long a rank waits for the others at the same call."""

BACKWARD = -1
"""The position of a call of ``backward()``; those in forward passes are 0 and above."""

END_OF_CELL = -2
"""The position of a rank that has finished the cell."""

NAMES = {BACKWARD: "backward()", END_OF_CELL: "the end of the cell"}


def start_of_forward(module: int, is_outermost: bool) -> int:
    """Return the position of the start of a forward pass, given the number of its module."""
    return 3 * module + is_outermost


def end_of_forward(module: int) -> int:
    """Return the position of the end of an outermost forward pass."""
    return 3 * module + 2


def _is_outermost_start(position: int) -> bool:
    return position >= 0 and position % 3 == 1


class CallOrderCheck:
    """Compares positions of ranks, on the CPU, so that no GPU is waited for."""

    def __init__(
        self, strategy: str, group: ProcessGroup, remedy: str, in_memory: bool = False
    ) -> None:
        """Compare the ranks of ``group``.

        Args:
            strategy: the name of the strategy, for error messages.
            group: the ranks, a group of its own with ``TIMEOUT``.
            remedy: what to type where ranks run different modules.
            in_memory: whether to use shared memory if there is some; only for a group of all ranks,
                which then compare and all-reduce in the same order.
        """
        self.strategy = strategy
        self.group = group
        self.remedy = remedy
        self.in_memory = in_memory

    def check(self, position: int, name: str = "") -> None:
        """Make sure that all ranks are at ``position``; collective.

        Args:
            position: a number for the call, the same on all ranks.
            name: describes the position in the error message.

        Raises:
            StrategyError: another rank is at another position, or did not arrive in time.
        """
        name = name or NAMES[position]
        try:
            in_memory = self.in_memory and can_share_memory()
            positions = gather_numbers(position, None if in_memory else self.group)
        except RankError:
            raise  # a rank has left
        except RuntimeError as error:
            raise self._different_modules(name) from error
        highest, lowest = max(positions), min(positions)
        if highest == lowest:
            return
        if lowest in NAMES and (highest in NAMES or _is_outermost_start(highest)):
            raise self._different_steps(name, None if position == lowest else NAMES[lowest])
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
