"""A check, and its result."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from nbmgpu.errors import NbmgpuError, StrategyError

if TYPE_CHECKING:
    from .setting import Setting

Status = Literal["passed", "failed", "refused", "skipped"]
"""``refused``: nbmgpu declined to run the cell, in words; ``skipped``: it does not apply here."""

MESSAGE = 400
"""Characters of an exception's message that are kept."""


class CheckSkipped(Exception):
    """A check does not apply to this machine; the message says why."""


@dataclass(frozen=True)
class Finding:
    """What a check that passed has found.

    Attributes:
        text: one line for people.
        values: numbers and texts by name, for the report.
        warning: what is not as it should be, though the check has passed; may be empty.
    """

    text: str = ""
    values: dict[str, float | str] = field(default_factory=dict)
    warning: str = ""


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
        group: the kind of check, such as ``numbers``.
        name: unique in its group.
        status: how it ended.
        text: what was found, or why it failed, was refused or skipped.
        seconds: that it took.
        values: what was measured, by name.
        warning: what is not as it should be, though the check has passed; may be empty.
    """

    group: str
    name: str
    status: Status
    text: str
    seconds: float
    values: dict[str, float | str] = field(default_factory=dict)
    warning: str = ""

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, line: str) -> CheckResult:
        """Return the result that ``to_json`` wrote."""
        return cls(**json.loads(line))


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        group, name: as in ``CheckResult``.
        function: runs it; raises ``AssertionError`` if what it found is wrong.
        quick: whether ``--quick`` includes it.
    """

    group: str
    name: str
    function: Callable[[Setting], Finding]
    quick: bool = True

    @property
    def label(self) -> str:
        """The name that ``--only`` takes."""
        return f"{self.group}: {self.name}"

    def run(self, setting: Setting) -> CheckResult:
        """Run it; exceptions become results."""
        begun = time.monotonic()
        values: dict[str, float | str] = {}
        status: Status
        warning = ""
        try:
            finding = self.function(setting)
            status, text, values = "passed", finding.text, finding.values
            warning = finding.warning
        except CheckSkipped as reason:
            status, text = "skipped", str(reason)
        except StrategyError as error:
            status, text = "refused", str(error)
        except (Exception, KeyboardInterrupt) as error:
            own = isinstance(error, NbmgpuError | AssertionError)
            status, text = "failed", f"{'' if own else f'{type(error).__name__}: '}{error}"
        seconds = round(time.monotonic() - begun, 2)
        return CheckResult(self.group, self.name, status, text[:MESSAGE], seconds, values, warning)
