"""LoRA adapters of peft: trained alone, equal to one device's, saved and merged."""

from __future__ import annotations

from pathlib import Path

import pytest
from idioms.comparison import run_both
from idioms.differences import difference
from safetensors.torch import load_file

pytestmark = pytest.mark.filterwarnings("ignore")  # of peft and transformers, in this process

SETUP = """
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, TensorDataset
from transformers import (
    GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments,
)
torch.manual_seed(0)
ids = torch.randint(0, 64, (24, 8))

def gpt2():
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=16, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))

def llama():
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=16))

def adapted(model, *names):
    return get_peft_model(model, LoraConfig(
        r=4, init_lora_weights=False, target_modules=[*names], task_type="CAUSAL_LM"))
"""
GPT2 = "model = adapted(gpt2(), 'c_attn', 'c_proj', 'c_fc')\n"
LLAMA = "model = adapted(llama(), 'q_proj', 'v_proj', 'gate_proj', 'down_proj')\n"
"""Some of the layers that a tensor-parallel block would consist of have adapters, others do not."""
LOOP = """
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
model.train()
for (batch,) in DataLoader(TensorDataset(ids), 6):
    optimizer.zero_grad()
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
"""
TRAINER = """
arguments = TrainingArguments(
    "out", report_to="none", save_strategy="no", num_train_epochs=1, use_cpu=True,
    per_device_train_batch_size=6, learning_rate=1e-2)
trainer = Trainer(model, arguments, train_dataset=[dict(input_ids=i, labels=i) for i in ids])
trainer.train()
"""
SAVE = """
state = {name: value.clone() for name, value in model.state_dict().items()}
model.save_pretrained("adapter")
"""


@pytest.mark.parametrize(
    ("strategy", "setup", "cell"),
    [
        pytest.param("ddp", LLAMA, TRAINER, id="ddp"),
        pytest.param("zero1", "", GPT2 + LOOP, id="zero1-in-cell"),
        pytest.param("fsdp", LLAMA, LOOP, id="fsdp"),
        pytest.param("tp", LLAMA, LOOP, id="tp"),
        pytest.param("tp", "", GPT2 + TRAINER, id="tp-in-cell"),
        pytest.param("pp", LLAMA, LOOP, id="pp"),
        pytest.param("sp", LLAMA, LOOP, id="sp"),
        pytest.param("fsdp+tp", LLAMA, TRAINER, id="fsdp+tp"),
    ],
)
def test_lora(tmp_path: Path, strategy: str, setup: str, cell: str) -> None:
    result = run_both(
        cell + SAVE,
        SETUP + setup,
        4 if strategy == "fsdp+tp" else 2,
        prelude="",
        folder=tmp_path,
        strategy=strategy,
    )
    assert result.difference("model") < 1e-5
    assert result.difference("state") < 1e-5
    alone, ranks = (side["model"] for side in (result.alone, result.ranks))
    trained = {name for name, p in ranks.named_parameters() if p.requires_grad}
    assert trained == {name for name, _ in ranks.named_parameters() if "lora_" in name}
    files = (tmp_path / side / "adapter/adapter_model.safetensors" for side in ("alone", "ranks"))
    assert difference(*map(load_file, files)) < 1e-5
    assert difference(alone.merge_and_unload(), ranks.merge_and_unload()) < 1e-5
