"""Sources of tests of strategies whose ranks hold parts of one model."""

from __future__ import annotations

WIDE = """
model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)), nn.Linear(256, 4))
X = torch.randn(44, 256)
loader = DataLoader(TensorDataset(X, Y), batch_size=8)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
"""
HELD = """
import gc
held = sum(
    storage.nbytes() for storage in {
        t.untyped_storage().data_ptr(): t.untyped_storage()
        for t in gc.get_objects() if type(t) in (torch.Tensor, nn.Parameter) and not t.is_sparse
        and t.numel() > 1000
    }.values()
)
"""

MODELS = {
    "llama": """
import transformers
config = transformers.LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16,
    bos_token_id=1, eos_token_id=2, pad_token_id=0)
model = transformers.LlamaForCausalLM(config)
""",
    "llama with dropout": """
import transformers
config = transformers.LlamaConfig(vocab_size=40, hidden_size=16, intermediate_size=32,
    num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=16, attention_dropout=0.2,
    bos_token_id=1, eos_token_id=2, pad_token_id=0)
model = transformers.LlamaForCausalLM(config)
""",
    "qwen3": """
import transformers
config = transformers.Qwen3Config(vocab_size=40, hidden_size=16, intermediate_size=32,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=4,
    max_position_embeddings=16, bos_token_id=1, eos_token_id=2, pad_token_id=0)
model = transformers.Qwen3ForCausalLM(config)
""",
    "gpt2": """
import transformers
config = transformers.GPT2Config(vocab_size=41, n_embd=16, n_layer=2, n_head=2, n_positions=16,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2)
model = transformers.GPT2LMHeadModel(config)
""",
    "t5": """
import transformers
config = transformers.T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=2,
    num_heads=2, dropout_rate=0.0, decoder_start_token_id=0)
model = transformers.T5ForConditionalGeneration(config)
""",
    "encoder": """
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(16, 40)
    def forward(self, input_ids, labels):
        logits = self.head(self.layers(self.embedding(input_ids)))
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten())}
model = Encoder()
""",
}
TEXTS = """
ids = torch.randint(4, 40, (22, 7))
loader = DataLoader(TensorDataset(ids), batch_size=4)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
"""
"""The bias of keys has no gradient but rounding errors, which Adam would scale to steps."""

TRAIN_MODEL = """
for epoch in range(2):
    for (batch,) in loader:
        opt.zero_grad()
        loss = model(input_ids=batch, labels=batch)["loss"]
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
"""
