"""Print how far each strategy is from one device, for several models, as a Markdown table.

    python tools/difference_table.py > table.md

Each cell trains for two epochs with AdamW, a schedule, clipping, shuffling and uneven last batches
(T5 and the encoder with SGD). The number is the largest absolute difference of anything that the
cell leaves: weights, gradients, optimizer states, losses. The ranks are processes on this machine.
"""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]

from idioms.architectures import cell_of  # noqa: E402
from idioms.comparison import compare  # noqa: E402
from idioms.idiom import Idiom, idiom  # noqa: E402
from idioms.model_parallelism import MODELS, TEXTS, TRAIN_MODEL  # noqa: E402

from nbmgpu.errors import NbmgpuError  # noqa: E402


def of_tokens(name: str) -> Idiom:
    """Return the idiom of a model that is trained on tokens."""
    return idiom(name, TRAIN_MODEL, setup=MODELS[name] + TEXTS, rank_local="batch")


CELLS = {
    **{name: cell_of(name, "all", "kernel") for name in ("MLP", "conv net", "BERT", "GPT-2")},
    "Llama": cell_of("Llama", "all", "kernel"),
    "T5": of_tokens("t5"),
    "nn.Transformer": of_tokens("encoder"),
}
RANKS = {
    "ddp": 2, "zero1": 2, "zero2": 2, "fsdp": 2, "tp": 2, "pp": 2, "sp": 2, "mp": 2, "hsdp": 4,
    "fsdp+tp": 4, "fsdp+pp": 4, "tp+pp": 4, "fsdp+tp+pp": 8,
}  # fmt: skip


def entry(cell: Idiom, strategy: str) -> str:
    """Return the difference, or that the strategy refuses the model."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            result = compare(cell, RANKS[strategy], strategy=strategy)
    except NbmgpuError as error:
        print(f"{strategy}, {cell.name}: {error}", file=sys.stderr)
        return "refused"
    for line in result.wrong:
        print(f"{strategy}, {cell.name}: {line}", file=sys.stderr)
    return f"{result.error:.0e}" if result.error else "0"


def main() -> None:
    """Print a row per strategy and a column per model."""
    print(f"| strategy | ranks | {' | '.join(CELLS)} |")
    print("|---|---" + "|---" * len(CELLS) + "|")
    for strategy, ranks in RANKS.items():
        entries = [entry(cell, strategy) for cell in CELLS.values()]
        print(f"| `{strategy}` | {ranks} | {' | '.join(entries)} |", flush=True)


if __name__ == "__main__":
    main()
