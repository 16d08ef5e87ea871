"""Models of transformers, small and new, in loops as its documentation writes them."""

from idioms.idiom import idiom

LOOP = """
    model.train()
    for epoch in range(2):
        for batch in loader:
            outputs = model(**batch)
            loss = outputs.loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            opt.zero_grad()
            losses.append(loss.item())
"""

SETUP = """
    from transformers import {config}, {model}, get_linear_schedule_with_warmup

    config = {config}(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                      intermediate_size=32, max_position_embeddings=16, {more})
    model = {model}(config)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sched = get_linear_schedule_with_warmup(opt, 2, 10)
    ids = torch.randint(3, 40, (22, 8))
    attention_mask = (torch.arange(8) < torch.randint(3, 9, (22, 1))).long()
"""
CAUSAL = """
    labels = ids.masked_fill(attention_mask == 0, -100)
    rows = [dict(input_ids=i, attention_mask=m, labels=l)
            for i, m, l in zip(ids, attention_mask, labels)]
    loader = DataLoader(rows, batch_size=6, shuffle=True)
"""
CLASSES = """
    labels = torch.randint(0, 2, (22,))
    rows = [dict(input_ids=i, attention_mask=m, labels=l)
            for i, m, l in zip(ids, attention_mask, labels)]
    loader = DataLoader(rows, batch_size=5)
"""


IDIOMS = [
    idiom("BERT, classification", LOOP, setup=SETUP.format(
        config="BertConfig", model="BertForSequenceClassification",
        more="hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0") + CLASSES,
        rank_local="outputs", ranks=(2, 3)),
    idiom("BERT, masked tokens", LOOP, setup=SETUP.format(
        config="BertConfig", model="BertForMaskedLM",
        more="hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0") + """
    labels = ids.masked_fill(torch.rand(22, 8) > 0.3, -100)
    rows = [dict(input_ids=i, labels=l) for i, l in zip(ids, labels)]
    loader = DataLoader(rows, batch_size=6, shuffle=True)
    """, rank_local="outputs"),
    idiom("GPT-2, tied, -100", LOOP, setup=SETUP.format(
        config="GPT2Config", model="GPT2LMHeadModel",
        more="resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0") + CAUSAL,
        rank_local="outputs", ranks=(2, 3)),
    idiom("Llama, -100", LOOP, setup=SETUP.format(
        config="LlamaConfig", model="LlamaForCausalLM", more="num_key_value_heads=1") + CAUSAL,
        rank_local="outputs"),
    idiom("GPT-2, out.loss / accumulation", """
        model.train()
        for step, batch in enumerate(loader):
            out = model(input_ids=batch["input_ids"], labels=batch["labels"])
            (out.loss / 2).backward()
            losses.append(out.loss.item())
            if step % 2:
                opt.step()
                opt.zero_grad()
        """, setup=SETUP.format(
        config="GPT2Config", model="GPT2LMHeadModel",
        more="resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0") + CAUSAL),
    idiom("T5", """
        for batch in loader:
            out = model(input_ids=batch["input_ids"], labels=batch["labels"])
            out.loss.backward()
            opt.step()
            opt.zero_grad()
            losses.append(out.loss.item())
        """, setup="""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2,
                      dropout_rate=0.0, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.randint(3, 40, (22, 8))
    attention_mask = (torch.arange(8) < torch.randint(3, 9, (22, 1))).long()
    """ + CAUSAL, rank_local="out"),
]  # fmt: skip
