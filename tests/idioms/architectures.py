"""Cells that train models of several architectures, in several variations of a training loop."""

from __future__ import annotations

from .idiom import Idiom, idiom

STRATEGIES = (
    "ddp", "zero1", "zero2", "fsdp", "hsdp", "tp", "fsdp+tp", "pp", "sp", "cp",
    "deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3",
    "deepspeed_stage_2_offload", "deepspeed_stage_3_offload", "mp", "dp",
)  # fmt: skip
"""Every strategy that trains."""

LANGUAGE = """
from transformers import {config}, {cls}
def build():
    return {cls}({config}(vocab_size=40, hidden_size=16, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=32, max_position_embeddings=16, {more}))
rows = torch.randint(3, 40, (22, 8), generator=torch.Generator().manual_seed(5))
"""
ON_TOKENS = "model(input_ids=batch, labels=batch).loss"

MODELS = {
    "MLP": (
        """
def build():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 4))
rows = list(zip(X, Y))
""",
        "F.cross_entropy(model(batch[0]), batch[1])",
    ),
    "conv net": (
        """
class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)])
        self.norm = nn.GroupNorm(2, 4)
        self.head = nn.Linear(4 * 36, 4)
    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(self.norm(x).flatten(1))
build = Conv
images = torch.randn(22, 1, 6, 6, generator=torch.Generator().manual_seed(5))
rows = list(zip(images, Y[:22]))
""",
        "F.cross_entropy(model(batch[0]), batch[1])",
    ),
    "BERT": (
        LANGUAGE.format(
            config="BertConfig",
            cls="BertForSequenceClassification",
            more="hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0",
        ),
        "model(input_ids=batch, labels=batch[:, 0] % 2).loss",
    ),
    "GPT-2": (
        LANGUAGE.format(
            config="GPT2Config",
            cls="GPT2LMHeadModel",
            more="resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0",
        ),
        ON_TOKENS,
    ),
    "Llama": (
        LANGUAGE.format(config="LlamaConfig", cls="LlamaForCausalLM", more="num_key_value_heads=1"),
        ON_TOKENS,
    ),
}
"""For each model: how to build it and its rows, and the loss of a batch."""

# The bias of attention's keys has a gradient of zero but for rounding, and Adam divides by the
# size of gradients: with its usual eps of 1e-8 it makes steps of that rounding.

BUILD = """
torch.manual_seed(7)
model = build()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-6)
sched = torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=6)
"""
LOOP = """
loader = DataLoader(rows, batch_size={batch}, shuffle={shuffle})
model.train()
for epoch in range(2):
    for i, batch in enumerate(loader):
        loss = {loss}
        {backward}
        {step}
        losses.append(loss.item())
"""
STEP = "opt.step(); opt.zero_grad()"
VARIATIONS = {
    "plain": {},
    "shuffle": {"shuffle": True},
    "uneven batches": {"batch": 5},
    "clip": {"step": "nn.utils.clip_grad_norm_(model.parameters(), 0.1); " + STEP},
    "scheduler": {"step": "opt.step(); sched.step(); opt.zero_grad()"},
    "accumulation": {
        "backward": "(loss / 2).backward()",
        "step": "if i % 2:\n            opt.step(); opt.zero_grad()",
    },
    "all": {
        "batch": 5,
        "shuffle": True,
        "step": "nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n"
        "        opt.step(); sched.step(); opt.zero_grad()",
    },
}
"""What makes one cell different from the plain one."""


def cell_of(model: str, variation: str, built_in: str) -> Idiom:
    """Return the idiom of a model, built in the ``kernel`` or in the ``cell``."""
    setup, loss = MODELS[model]
    parts = {"batch": 4, "shuffle": False, "backward": "loss.backward()", "step": STEP}
    loop = LOOP.format(loss=loss, **(parts | VARIATIONS[variation]))
    inside = built_in == "cell"
    return idiom(
        f"{model}, {variation}, built in the {built_in}",
        BUILD + loop if inside else loop,
        setup=setup + ("model = opt = sched = None" if inside else BUILD),
        rank_local="rows images",
    )


CELLS = [
    *(cell_of("MLP", variation, "kernel") for variation in VARIATIONS),
    *(cell_of("GPT-2", variation, "kernel") for variation in ("clip", "accumulation")),
    *(cell_of(model, "accumulation", "cell") for model in ("conv net", "Llama")),
    *(cell_of(model, "all", place) for model in MODELS for place in ("kernel", "cell")),
]
"""Every variation on its own for one model, all of them together for every model."""
