"""Cells that train models of sequences, in which layers can run on slices of the sequence."""

from __future__ import annotations

import textwrap

from .idiom import Idiom, idiom

OPT = "opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)\n"
"""The bias of keys has no gradient but rounding errors, which Adam would scale to steps."""

TEXTS = """
ids = torch.randint(4, 40, (14, 8))
loader = DataLoader(TensorDataset(ids), batch_size=4)
"""
GPT = """
import torch.utils.checkpoint
class Attention(nn.Module):
    def __init__(self, width, heads, p):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.p = heads, p
    def forward(self, x):
        batch, length, width = x.shape
        shape = batch, length, 3, self.heads, width // self.heads
        q, k, v = self.qkv(x).view(shape).permute(2, 0, 3, 1, 4)
        p = self.p if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))
class Block(nn.Module):
    def __init__(self, width=16, heads=4, p=0.0, attention_p=0.0):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, attention_p)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(p))
    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(self.norm2(x))
class GPT(nn.Module):
    def __init__(self, width=16, heads=4, layers=2, **more):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(40, width), nn.Embedding(16, width)
        self.blocks = nn.ModuleList(Block(width, heads, **more) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 40, bias=False)
        self.head.weight = self.tokens.weight
    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
"""
LOSS = "F.cross_entropy(logits[:, :-1].reshape(-1, 40), b[:, 1:].reshape(-1))"
TRAIN = f"""
for epoch in range(2):
    for (b,) in loader:
        opt.zero_grad()
        logits = model(b)
        loss = {LOSS}
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
"""
HUGGING_FACE = TRAIN.replace("logits = model(b)", "pass").replace(
    LOSS, "model(input_ids=b, labels=b).loss"
)


def gpt(loop: str = "x = block(x)", more: str = "") -> str:
    """Return the source of a GPT whose ``forward`` calls its blocks in ``loop``."""
    return TEXTS + GPT.replace("x = block(x)", loop) + f"model = GPT({more})\n" + OPT


def loss(source: str) -> str:
    """Return the training loop with another loss."""
    return TRAIN.replace(LOSS, source)


def pretrained(cls: str, config: str, sizes: str) -> str:
    """Return the source of a small model of transformers with random weights."""
    return (
        f"{TEXTS}from transformers import {cls}, {config}\n"
        f"model = {cls}({config}(vocab_size=40, {sizes}, max_position_embeddings=20))\n{OPT}"
    )


LLAMA = "hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4"
GROUPED = LLAMA + ", num_key_value_heads=2"
ENCODER = """
class Encoder(nn.Module):
    def __init__(self, batch_first=True, p=0.0):
        super().__init__()
        self.tokens, self.batch_first = nn.Embedding(40, 16), batch_first
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=p, batch_first=batch_first)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 40)
    def forward(self, ids):
        x = self.tokens(ids)
        x = self.layers(x if self.batch_first else x.transpose(0, 1), MORE)
        return self.head(x if self.batch_first else x.transpose(0, 1))
"""


def encoder(more: str = "None", options: str = "") -> str:
    """Return the source of an ``nn.TransformerEncoder``."""
    return TEXTS + ENCODER.replace("MORE", more) + f"model = Encoder({options})\n" + OPT


AUTOGRAD_FUNCTION = """
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, grad):
        return grad * 2
"""
CHECKPOINT = "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant={})"


def limited(line: str) -> str:
    """Return the source of a GPT whose blocks begin with ``line``, and of a large token.

    It is in the third batch: in the first one, the line does nothing.
    """
    begin = "x = x + self.attention(self.norm(x))\n"
    return gpt().replace(begin, f"{line}\n        {begin}") + (
        "ids[:] = ids.clamp(5)\nids[9, 2] = 4\nmodel.tokens.weight.data[4, 0] = 20.0\n"
    )


CELLS: list[Idiom] = [
    idiom("a GPT", TRAIN, setup=gpt()),
    idiom("dropout", TRAIN, setup=gpt(more="p=0.2")),
    idiom("dropout in attention", TRAIN, setup=gpt(more="p=0.1, attention_p=0.2")),
    idiom("heads that ranks do not divide", TRAIN, setup=gpt(more="width=12, heads=3")),
    idiom("a length that ranks do not divide", TRAIN, setup=gpt() + TEXTS.replace("8)", "7)")),
    idiom("as many samples as positions", TRAIN, setup=gpt() + TEXTS.replace("8)", "4)")),
    idiom("lengths that change", """
        for length in (8, 5, 2, 1, 7, 4):
            b = ids[:4, :length]
            opt.zero_grad()
            loss = F.cross_entropy(model(b).flatten(0, 1), b.flatten())
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, setup=gpt(), split=False),
    idiom("evaluation", TRAIN + """
model.eval()
with torch.no_grad():
    right = sum((model(b).argmax(-1) == b).sum().item() for (b,) in loader)
""", setup=gpt(more="p=0.2")),
    idiom("hidden states in the loss", TRAIN.replace(
        "loss.backward()", "(loss + sum(h.square().mean() for h in model.hidden)).backward()"
        ) + "model.hidden = None\n",
        setup=gpt("x = block(x); self.hidden = [*getattr(self, 'hidden', [])[-1:], x]")),
    idiom("a change in place between layers", TRAIN, setup=gpt("x = block(x); x.mul_(0.9)")),
    idiom("connections between layers", TRAIN, setup=gpt("x = x + 0.5 * block(x)")),
    idiom("a layer that is called twice", TRAIN, setup=gpt("x = block(block(x))")),
    idiom("stochastic depth", TRAIN, setup=gpt("x = block(x) if torch.rand(()) > 0.3 else x")),
    idiom("checkpoints", TRAIN, setup=gpt(CHECKPOINT.format(False), "p=0.2")),
    idiom("reentrant checkpoints", TRAIN, setup=gpt(CHECKPOINT.format(True), "p=0.2")),
    idiom("a hook inside of a layer", TRAIN, setup=gpt() + "seen = []\n"
        "model.blocks[1].mlp.register_forward_hook(lambda m, a, o: seen.append(o.mean().item()))\n",
        notices="whole-sequences-Block"),
    idiom("torch.autograd.grad", TRAIN.replace("loss.backward()",
        "for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):"
        " p.grad = g"), setup=gpt()),
    idiom("a pooled output", loss("F.cross_entropy(logits.mean(1), b[:, 0])"), setup=gpt()),
    idiom("shifted logits", loss("F.cross_entropy(logits[..., :-1, :].contiguous().view(-1, 40), "
        "b[..., 1:].contiguous().view(-1), ignore_index=7)"), setup=gpt()),
    idiom("class weights", loss("F.cross_entropy(logits.view(-1, 40), b.view(-1), "
        "torch.linspace(0.1, 1, 40), ignore_index=7, label_smoothing=0.1)"), setup=gpt()),
    idiom("a summed loss", loss("F.cross_entropy(logits.flatten(0, 1), b.flatten(), "
        "reduction='sum') / b.numel()"), setup=gpt()),
    idiom("losses of each position", loss("F.cross_entropy(logits.flatten(0, 1), b.flatten(), "
        "reduction='none').mean()"), setup=gpt()),
    idiom("two losses", loss("F.cross_entropy(logits.view(-1, 40), b.view(-1)) "
        "+ 1e-2 * logits.logsumexp(-1).square().mean()"), setup=gpt()),
    idiom("logits changed in place", loss("F.cross_entropy(logits.mul_(0.5).view(-1, 40), "
        "b.view(-1))"), setup=gpt()),
    idiom("a function of the cell", loss("Double.apply(logits.view(-1, 40)).square().mean()"),
        setup=AUTOGRAD_FUNCTION + gpt()),
    idiom("logits that are kept", TRAIN.replace("losses", "kept = logits; losses"),
        setup=gpt()),
    idiom("a convolution in layers", TRAIN, setup=gpt(
        "x = block(x)").replace("return x + self.mlp(self.norm2(x))",
        "return x + F.avg_pool1d(self.mlp(self.norm2(x)).mT, 3, 1, 1).mT")),
    idiom("positions that meet behind a tiny factor", TRAIN, setup=gpt().replace(
        "self.mlp = nn", "self.factor = nn.Parameter(torch.full((), 1e-6))\n        self.mlp = nn",
        ).replace("return x + self.mlp(self.norm2(x))",
        "y = self.mlp(self.norm2(x))\n        return x + self.factor * (y + y.mean(1, True))")
        + "opt = torch.optim.SGD(model.parameters(), lr=1.0)\n"),
    idiom("a limit of all positions", TRAIN, setup=limited("if x.abs().max() > 9: x = x * 0.5"),
        notices="whole-sequences-Block no-sequence"),
    idiom("a limit of all positions that is not read", TRAIN,
        setup=limited("x = torch.where(x.abs().max() > 9, x * 0.5, x)"),
        notices="whole-sequences-Block no-sequence"),
    idiom("a layer of many parameters", TRAIN, setup=gpt().replace(
        "self.heads, self.p = heads, p",
        "self.heads, self.p = heads, p\n        self.more = nn.ModuleList(nn.Linear(16, 16) "
        "for _ in range(60))").replace(
        "return self.out(y", "for each in self.more: x = x + 0.1 * each(x)\n"
        "        return x + self.out(y")),
    idiom("a loop that doubles numbers", TRAIN,
        setup=limited("while x.norm() < 40: x = x * 2"),
        notices="whole-sequences-Block no-sequence"),
    idiom("a limit of each position", TRAIN,
        setup=limited("x = torch.where(x.abs().amax(-1, True) > 9, x * 0.5, x)")),
    idiom("dropout with a default device",
        "with next(model.parameters()).device:" + textwrap.indent(TRAIN, "    "),
        setup=gpt(more="p=0.2")),
    idiom("a Llama", HUGGING_FACE, setup=pretrained(
        "LlamaForCausalLM", "LlamaConfig", GROUPED)),
    idiom("one head of keys", HUGGING_FACE, setup=pretrained(
        "LlamaForCausalLM", "LlamaConfig", LLAMA + ", num_key_value_heads=1")),
    idiom("padding", HUGGING_FACE.replace("labels=b", "labels=b, attention_mask=(b > 8).long()"),
        setup=pretrained("LlamaForCausalLM", "LlamaConfig", LLAMA)),
    idiom("generation", HUGGING_FACE + "model.eval()\n"
        "texts = model.generate(ids[:2], max_new_tokens=5, do_sample=False)\n",
        setup=pretrained("LlamaForCausalLM", "LlamaConfig", LLAMA)),
    idiom("a sliding window", HUGGING_FACE, setup=pretrained(
        "MistralForCausalLM", "MistralConfig", GROUPED + ", sliding_window=3")),
    idiom("experts", HUGGING_FACE, setup=pretrained(
        "MixtralForCausalLM", "MixtralConfig", GROUPED + ", num_local_experts=4")),
    idiom("GPT-2 with dropout", HUGGING_FACE, setup=pretrained(
        "GPT2LMHeadModel", "GPT2Config", "n_embd=16, n_layer=2, n_head=4")),
    idiom("BERT with dropout", HUGGING_FACE, setup=pretrained(
        "BertForMaskedLM", "BertConfig", LLAMA)),
    idiom("OPT with dropout", HUGGING_FACE, setup=pretrained(
        "OPTForCausalLM", "OPTConfig", LLAMA.replace("intermediate_size", "ffn_dim")
        + ", word_embed_proj_dim=16")),
    idiom("T5", HUGGING_FACE, setup=pretrained("T5ForConditionalGeneration", "T5Config",
        "d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0"),
        notices="whole-sequences-T5Block no-sequence"),
    idiom("nn.TransformerEncoder", TRAIN, setup=encoder(options="p=0.1")),
    idiom("the sequence first", TRAIN, setup=encoder(options="batch_first=False")),
    idiom("a mask of padding", TRAIN, setup=encoder("src_key_padding_mask=ids < 8")),
    idiom("a causal mask", TRAIN, setup=encoder(
        "nn.Transformer.generate_square_subsequent_mask(ids.shape[1])")),
    idiom("an LSTM", TRAIN, setup=gpt("x = block(x)[0]").replace(
        "Block(width, heads, **more)", "nn.LSTM(width, width, batch_first=True)"),
        notices="whole-sequences-LSTM no-sequence"),
]  # fmt: skip
"""Cells with the notices that they must be given under ``sp``."""
