"""Models whose predicted memory is compared with measurements of a training run."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import nbmgpu
from nbmgpu.advisor.model_advisor import ModelAdvisor
from nbmgpu.advisor.request import AdviceRequest
from nbmgpu.strategies.strategy_options import Precision

RANKS = 2

MARKER = 7919
"""Bytes of a tensor of which there is no other with the same size."""

CELL = """
import gc, os
import psutil
base = psutil.Process().memory_full_info().uss
profiler = torch.profiler.profile(
    activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
)
profiler.start()
# Created in the cell: objects from the notebook's bundle are mapped, one copy for all ranks.
model = make()
optimizer = torch.optim.Adam(model.parameters())
for batch in loader:
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    optimizer.step()
    torch.empty(MARKER, dtype=torch.uint8)  # ends a step
profiler.stop()
allocations, events = [], list(profiler.profiler.kineto_results.experimental_event_tree())
while events:
    event = events.pop()
    events += event.children
    if event.tag == torch._C._profiler._EventType.Allocation:
        fields = event.extra_fields
        allocations.append((event.start_time_ns, fields.ptr, fields.alloc_size))
allocations.sort()
held, peak, start, live = 0, 0, None, {}
for _, address, size in allocations:
    # Memory that a gloo thread frees is not recorded, but its address is allocated again.
    held -= live.pop(address, 0)
    if size > 0:
        live[address] = size
        held += size
    if size == MARKER and start is None:
        start, peak = peak, held
    peak = max(peak, held)
del profiler, events, event, allocations, live
"""


class Texts(Dataset[Any]):
    def __init__(self, count: int = 48, tokens: int = 64) -> None:
        self.count, self.tokens = count, tokens

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(index, index + self.tokens) % 500
        return {"input_ids": ids}


class Pictures(Dataset[Any]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3, 32, 32), index / 48), index % 10


class Vectors(Dataset[Any]):
    def __init__(self, width: int) -> None:
        self.width = width

    def __len__(self) -> int:
        return 192

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((self.width,), index / 192), index % 10


def mlp() -> nn.Module:
    layers = [layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(512, 10))


def conv() -> nn.Module:
    def block(width: int, out: int) -> list[nn.Module]:
        return [nn.Conv2d(width, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()]

    return nn.Sequential(
        *block(3, 64), *block(64, 64), nn.MaxPool2d(2), *block(64, 128), *block(128, 128),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(hidden_size=128, num_hidden_layers=4, num_attention_heads=4,
                   intermediate_size=512, vocab_size=2000, max_position_embeddings=128)
    )  # fmt: skip


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(n_layer=4, n_embd=128, n_head=4, vocab_size=2000, n_positions=128,
                   bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM")
    )  # fmt: skip


def stack() -> nn.Module:
    """25 million parameters."""
    layers = [layer for _ in range(24) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(1024, 10))


def large_gpt2() -> nn.Module:
    """27 million parameters."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(n_layer=8, n_embd=512, n_head=8, vocab_size=4000, n_positions=128,
                   resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                   bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM")
    )  # fmt: skip


def long_gpt2() -> nn.Module:
    """One million parameters, for long sequences, with dropout outside of attention."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(n_layer=4, n_embd=128, n_head=8, vocab_size=1000, n_positions=2048,
                   attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM")
    )  # fmt: skip


def large_llama() -> nn.Module:
    """29 million parameters."""
    return llama(hidden_size=512, intermediate_size=1376, num_hidden_layers=8, vocab_size=4000)


def long_llama() -> nn.Module:
    """One million parameters, for long sequences."""
    return llama(hidden_size=128, intermediate_size=344, num_hidden_layers=4, vocab_size=1000)


def llama(**sizes: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(**sizes, num_attention_heads=8, num_key_value_heads=8,
                    max_position_embeddings=4096, bos_token_id=0, eos_token_id=0, pad_token_id=1)
    )  # fmt: skip


def classified(model: nn.Module, batch: Any) -> torch.Tensor:
    x, y = batch
    output = model(x)
    return nn.functional.cross_entropy(output, y)


def language(model: nn.Module, batch: Any) -> torch.Tensor:
    loss: torch.Tensor = model(**batch, labels=batch["input_ids"]).loss
    return loss


@dataclass(frozen=True)
class Model:
    make: Any
    loss_of: Any
    data: Dataset[Any]
    batch: int

    def loader(self) -> DataLoader[Any]:
        return DataLoader(self.data, batch_size=self.batch)

    def example(self) -> Any:
        batch = next(iter(self.loader()))
        return batch | {"labels": batch["input_ids"]} if isinstance(batch, dict) else batch


MODELS = {
    "mlp": Model(mlp, classified, Vectors(512), 64),
    "conv": Model(conv, classified, Pictures(), 16),
    "bert": Model(bert, language, Texts(), 16),
    "gpt2": Model(gpt2, language, Texts(), 16),
    "stack": Model(stack, classified, Vectors(1024), 64),
    "large gpt2": Model(large_gpt2, language, Texts(12, 32), 4),
    "large llama": Model(large_llama, language, Texts(12, 32), 4),
    "long llama": Model(long_llama, language, Texts(3, 4096), 1),
    "long gpt2": Model(long_gpt2, language, Texts(3, 2048), 1),
}


def advised(model: Model, precision: Precision | None = None, ranks: int = RANKS) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = model.make()
    optimizer = torch.optim.Adam(made.parameters())
    request = AdviceRequest(gpus=ranks, cpu=True, precision=precision)
    return ModelAdvisor(made, optimizer, model.example()).advise(request)


@dataclass(frozen=True)
class Measurements:
    """Bytes on the rank that has most of them.

    Attributes:
        peak: of tensors, from the end of the first step.
        start: of tensors, until then: the model is made in full, and sharded.
        base: of the process, before there were any tensors.
    """

    peak: int
    start: int
    base: int


def measured(
    model: Model,
    strategy: str,
    precision: Precision | None = None,
    ranks: int = RANKS,
    **more: Any,
) -> Measurements:
    names = {"torch": torch, "make": model.make, "loss_of": model.loss_of, "loader": model.loader()}
    names["MARKER"] = MARKER
    values = [f.name for f in fields(Measurements)]
    options = {"strategy": strategy, "precision": precision, "pull": values, **more}
    run = nbmgpu.run(CELL, names, gpus=ranks, cpu=True, **options)
    assert run is not None
    return Measurements(
        **{name: max(run.results[rank][name] for rank in range(ranks)) for name in values}
    )


def tensors_of(row: Any) -> tuple[int, int]:
    """Return the bounds of a row's predicted memory without the process itself."""
    parts = [part for part in row.parts if part.kind != "extra"]
    return sum(p.low for p in parts), sum(p.high for p in parts)
