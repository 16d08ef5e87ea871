"""What may differ between an exported script and the notebook, as sentences."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import torch
from torch import nn

from .definitions import RANDOM, Definitions
from .loop_edits import SHARE
from .loss_checks import reads_before_backward
from .request import ExportRequest
from .statements import without_gradients
from .tracker_calls import lines_on_every_rank
from .training_objects import TrainingObjects

NOT_AT_START = (
    "The models start as the notebook makes them, not as they were when the run began: export "
    "with %%mgpu --export before it, or run with --keep-start, for the numbers of the run."
)
REDRAWN = (
    "`{name}` cannot be stored in a file, so it is computed again, perhaps with other numbers than "
    "in the notebook."
)
RANDOM_LAYERS = (
    "`{name}` has {layers}: each rank draws its own random numbers for its part of the batch, or "
    "normalizes over it."
)
NO_LOADER = "The cell has no DataLoader that ranks could share, so every rank computes all of it."
COMPUTED_LOSS = (
    "A loss is averaged over something else than samples (`{what}`), and ranks are weighted by "
    "samples."
)
DRAWS = "The line `{line}` draws random numbers: on each rank, for its own part of the batch."
SUMMED = "`{line}` sums over samples: each rank has a part of them, and ranks average."
READ_BEFORE = (
    "The line `{line}` reads the loss before backward(): it is that of rank 0's part of the batch."
)
WRITING = re.compile(r"""\bopen\(.*,\s*(?:mode\s*=\s*)?["'][wax][bt+]*["']|savefig\(|\.to_csv\(""")
"""Calls that write a file."""

WRITES = "line `{line}` writes a file on every rank"

IGNORED = -100
"""Label that ``cross_entropy`` ignores unless its ``ignore_index`` is another one."""


def notes_of(
    request: ExportRequest,
    definitions: Definitions,
    objects: TrainingObjects,
    cell: str,
    divided: bool,
) -> Iterator[str]:
    """Yield what may differ, besides what the edits of the loop have found.

    Args:
        request: what is exported.
        definitions: of the notebook.
        objects: what is trained.
        cell: the source of the cell.
        divided: whether each rank has a part of a batch.
    """
    if not request.at_start:
        yield NOT_AT_START
    for name in definitions.redrawn:
        yield REDRAWN.format(name=name)
    if request.options.strategy == "none":
        return
    codes = [cell, *(i.text for i in definitions.items if i.statement)]
    for code in codes:
        yield from lines_on_every_rank(code)
    for line in cell.split("\n"):
        if WRITING.search(line):
            yield f"The {WRITES.format(line=line.strip())}."
    if divided:
        yield from _notes_of_parts(request, objects, cell, codes)


def _notes_of_parts(
    request: ExportRequest, objects: TrainingObjects, cell: str, codes: list[str]
) -> Iterator[str]:
    """Yield what may differ as each rank has a part of a batch."""
    tree = ast.parse(cell)
    for code in codes:
        yield from _draws(code)
    for statement in reads_before_backward(tree):
        yield READ_BEFORE.format(line=ast.unparse(statement).split("\n")[0])
    for name in objects.models:
        if layers := _random_layers(request.values[name]):
            yield RANDOM_LAYERS.format(name=name, layers=" and ".join(layers))
    if not objects.loaders and "DataLoader(" not in cell and f"{SHARE}(" not in cell:
        yield NO_LOADER
    losses = " ".join(map(_calls_of_losses, codes))
    if "ignore_index" in losses or _ignores_labels(request, objects, losses):
        yield COMPUTED_LOSS.format(what="ignore_index")
    if "weight=" in losses:
        yield COMPUTED_LOSS.format(what="weight")
    for summed in _sums_of_outputs(tree, {*objects.models, *objects.made_models}):
        yield SUMMED.format(line=ast.unparse(summed))


def _ignores_labels(request: ExportRequest, objects: TrainingObjects, losses: str) -> bool:
    """Return whether labels have the number that losses of classes ignore by default."""
    if not any(word in losses.lower() for word in ("cross_entropy", "crossentropy", "nll_loss")):
        return False
    datasets = [request.values[name].dataset for name in objects.loaders]
    wholes = [getattr(dataset, "dataset", dataset) for dataset in datasets]  # of a Subset
    tensors = [tensor for whole in wholes for tensor in getattr(whole, "tensors", ())]
    labels = [tensor for tensor in tensors if tensor.dtype == torch.int64]
    return any(bool((tensor == IGNORED).any()) for tensor in labels)


def _sums_of_outputs(tree: ast.Module, models: set[str]) -> Iterator[ast.Call]:
    """Yield calls of ``sum()`` on what is computed from the output of a model, with gradients."""
    evaluated = set(without_gradients(tree))
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=summed, attr="sum"), args=[]) as call:
                called = (n.func for n in ast.walk(summed) if isinstance(n, ast.Call))
                names = {each.id for each in called if isinstance(each, ast.Name)}
                if names & models and id(call) not in evaluated:
                    yield call


def _draws(code: str) -> Iterator[str]:
    """Yield notes on functions and loops that draw random numbers, or drop activations."""
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.FunctionDef | ast.For | ast.While):
            continue
        for statement in node.body:
            line = ast.unparse(statement).split("\n")[0]
            is_block = isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.For | ast.While)
            drawn = line.replace("normalize(", "")
            if not is_block and (RANDOM.search(drawn) or "dropout(" in drawn):
                yield DRAWS.format(line=line)


def _calls_of_losses(code: str) -> str:
    """Return the source of calls whose names are those of losses."""
    return " ".join(
        ast.unparse(node)
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Call)
        and any(word in ast.unparse(node.func).lower() for word in ("loss", "cross_entropy"))
    )


def _random_layers(model: nn.Module) -> list[str]:
    """Return the kinds of layers whose numbers depend on which samples a rank has."""
    found: dict[str, None] = {}
    for layer in model.modules():
        name = type(layer).__name__
        draws = "Dropout" in name and getattr(layer, "p", 0.0) > 0
        if draws or name.startswith("BatchNorm"):
            found[name] = None
    return list(found)
