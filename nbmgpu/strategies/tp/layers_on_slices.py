"""How the layers of a model run on slices of the sequence: ``--sequence-parallel``.

Between split layers, that is in norms, dropout, activation functions and residual additions, each
rank has a slice of the sequence; split layers gather it, and reduce-scatter what they return
(Korthikanti et al. 2022, 2205.05198).  Attention outside of a block whose activations stay split
exchanges heads, as under ``sp``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup

from nbmgpu.strategies.module_copy import kept_module_state, open_gates
from nbmgpu.strategies.sequence.block import BlockSettings
from nbmgpu.strategies.sequence.trial import Subject
from nbmgpu.strategies.sharding.view_attributes import graph_tensors

WHOLE = (
    "--sequence-parallel: layers of class {name} run on whole sequences, as without the option, "
    "which is right and saves nothing more: {reason}. Layers run on slices that treat each "
    "position alike outside of scaled_dot_product_attention "
    '(attn_implementation="sdpa" in Hugging Face\'s models).'
)

NO_SEQUENCE = (
    "--sequence-parallel has had no effect: no layer could run on slices of the sequence, of a "
    "tensor of shape (batch, sequence, features). The run was that of %%mgpu --strategy tp"
)


def layers_on_slices(group: ProcessGroup, notice: Callable[[str, str], None]) -> BlockSettings:
    """Return the settings of layers with parts on the ranks of ``group``.

    Args:
        group: the ranks.
        notice: shows a text about a topic.
    """

    def on_whole(module: nn.Module, reason: str) -> None:
        if torch.is_grad_enabled():
            name = type(module).__name__
            notice(f"whole-sequences-{name}", WHOLE.format(name=name, reason=reason))

    return BlockSettings(
        "tp --sequence-parallel",
        group,
        "heads",
        on_whole,
        subjects=in_place,
        # A rank's slice of one position fits to a whole tensor where those of others do not: that
        # rank alone would go on to the next collective.
        tries_single=False,
    )


@contextmanager
def in_place(module: nn.Module, call: Callable[..., Any]) -> Iterator[Subject]:
    """Try a layer itself: a copy would need its full parameters."""
    parameters = [t for p in module.parameters() for t in graph_tensors(p)]
    with kept_module_state(module), open_gates(parameters):
        yield Subject(module, call, parameters)
