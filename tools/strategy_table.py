"""Print the table of strategies for docs/strategies.md, generated from the profiles."""

from __future__ import annotations

from nbmgpu.options.flags import FLAGS
from nbmgpu.strategies.profile import Profile
from nbmgpu.strategies.profiles import BUILT_IN

NAMES = {flag.field: flag.name for flag in FLAGS}
HEAD = ("`--strategy`", "also called", "needs", "saves", "costs", "options")


def row(profile: Profile) -> str:
    """Return one strategy as a row of Markdown."""
    options = [NAMES[flag.field] for flag in FLAGS if flag.field in profile.options.supported]
    cells = (
        f"**`{profile.name}`** {profile.summary}",
        ", ".join(f"`{alias}`" for alias in profile.aliases),
        profile.needs,
        profile.saves,
        profile.costs,
        " ".join(f"`{option}`" for option in options),
    )
    return f"| {' | '.join(cells)} |"


def table() -> str:
    """Return the whole table as Markdown."""
    lines = [f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
    return "\n".join([*lines, *map(row, BUILT_IN.values())])


if __name__ == "__main__":
    print(table())
