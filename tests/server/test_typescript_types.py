"""The TypeScript types are generated from the dataclasses."""

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Literal

import pytest
from jupyter_server_process import REPOSITORY

sys.path.append(str(REPOSITORY / "tools"))

import typescript
import typescript_types

Colour = Literal["red", "green"]


@dataclass(frozen=True)
class Base:
    """Common fields; ``code`` contains \\n */, which must be escaped.

    Attributes:
        kind: the name of the type,
            on two lines.
    """

    kind: ClassVar[str]
    number: int


@dataclass(frozen=True)
class Leaf(Base):
    """A leaf."""

    kind: ClassVar[str] = "leaf"
    colour: Colour | None = None
    pair: tuple[float, str] = (0.0, "")
    many: tuple[Colour, ...] = ()
    by_name: Mapping[str, list[int | None]] = dataclasses.field(default_factory=dict)
    anything: Any = None
    _private: int = 0


@dataclass
class Odd:
    data: list[complex]


class Code(IntEnum):
    """Codes."""

    GOOD = 1


def declared(cls):
    """Return the declarations of ``cls`` and of the types of its fields, by name."""
    colour = typescript.Named(__name__, "Colour", Colour, "A colour.")
    left, found = [typescript.Named.of(cls)], {}
    while left:
        it = left.pop()
        made = typescript.declare(it, {repr(Colour): colour})
        found[it.name] = made.text
        left += made.used_types
    return found


def test_the_committed_files_are_up_to_date():
    stale = typescript_types.stale(typescript_types.generate())
    assert stale == [], "Type: python tools/typescript_types.py"


def test_changed_and_unknown_files_are_stale(tmp_path):
    texts = {"a.ts": "1", "b.ts": "2"}
    (tmp_path / "a.ts").write_text("1")
    (tmp_path / "c.ts").write_text("3")
    assert typescript_types.stale(texts, tmp_path) == ["b.ts", "c.ts"]


def test_dataclasses_become_interfaces():
    found = declared(Leaf)
    assert found["Leaf"].splitlines() == [
        "/** A leaf. */",
        "export interface Leaf extends Base {",
        "  kind: 'leaf';",
        "  colour: Colour | null;",
        "  pair: [number, string];",
        "  many: Colour[];",
        "  by_name: Record<string, (number | null)[]>;",
        "  anything: unknown;",
        "}",
    ]
    assert found["Colour"] == "/** A colour. */\nexport type Colour = 'red' | 'green';"
    assert "  /** the name of the type, on two lines. */\n  kind: string;" in found["Base"]
    assert "`code`" in found["Base"]
    assert "*/, which" not in found["Base"]


def test_int_enums_become_constants():
    assert declared(Code)["Code"] == "/** Codes. */\nexport const Code = {\n  GOOD: 1\n} as const;"


def test_untranslatable_types_are_rejected():
    with pytest.raises(typescript.UntranslatableError, match="complex"):
        declared(Odd)
