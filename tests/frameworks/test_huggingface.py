"""Cells with a Trainer have the numbers of one device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from idioms.comparison import Comparison, run_both
from idioms.differences import difference
from idioms.notebook import notebook, working_directory
from trainer_logs import FLOPS, logged

import nbmgpu
from nbmgpu.errors import StrategyError

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, in this process

SETUP = """
import torch, datasets
from torch import nn
from transformers import (
    BertConfig, BertForSequenceClassification, EarlyStoppingCallback, GPT2Config, GPT2LMHeadModel,
    LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments,
)
SMALL = dict(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
             intermediate_size=32, max_position_embeddings=16, bos_token_id=0, eos_token_id=1)

def bert():
    dropout = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return BertForSequenceClassification(BertConfig(**SMALL, **dropout))

def gpt2():
    dropout = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return GPT2LMHeadModel(GPT2Config(**SMALL, **dropout))

def llama():
    return LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=1))

ids = torch.randint(3, 40, (23, 8))
lengths = torch.randint(3, 9, (23,))
classes = [dict(input_ids=i, labels=l) for i, l in zip(ids, torch.randint(0, 2, (23,)))]
texts = [dict(input_ids=i, labels=i.masked_fill(torch.arange(8) >= n, -100))
         for i, n in zip(ids, lengths)]
ragged = [dict(input_ids=i[:n].tolist(), labels=i[:n].tolist()) for i, n in zip(ids, lengths)]

def pad(rows):
    n = max(len(row["input_ids"]) for row in rows)
    def column(key, filler):
        return torch.tensor([row[key] + [filler] * (n - len(row[key])) for row in rows])
    return dict(input_ids=column("input_ids", 0), labels=column("labels", -100))

class Stream(torch.utils.data.IterableDataset):
    def __init__(self, rows):
        self.rows = rows
    def __iter__(self):
        return iter(self.rows)

def accuracy(prediction):
    right = prediction.predictions.argmax(-1) == prediction.label_ids
    return {"accuracy": float(right.mean())}

def loss_of_sum(outputs, labels, num_items_in_batch=None):
    logits, labels = outputs["logits"][:, :-1], labels[:, 1:]
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    return loss / num_items_in_batch

def arguments(**more):
    common = dict(num_train_epochs=2, learning_rate=3e-3, report_to="none", logging_steps=1,
                  save_strategy="no", use_cpu=True, per_device_train_batch_size=5)
    return TrainingArguments("out", **{**common, **more})
"""

TOKENS = """
trainers = [
    Trainer(gpt2(), arguments(gradient_accumulation_steps=3, warmup_steps=2, max_grad_norm=0.1),
            train_dataset=ragged, data_collator=pad),
    Trainer(gpt2(), arguments(gradient_accumulation_steps=3, per_device_train_batch_size=11),
            train_dataset=texts),
    Trainer(llama(), arguments(gradient_accumulation_steps=2, label_smoothing_factor=0.1),
            train_dataset=texts),
    Trainer(gpt2(), arguments(gradient_accumulation_steps=2, num_train_epochs=1),
            train_dataset=texts, compute_loss_func=loss_of_sum),
    Trainer(gpt2(), arguments(gradient_accumulation_steps=2, max_steps=5),
            train_dataset=Stream(texts)),
    Trainer(llama(), arguments(train_sampling_strategy="group_by_length", num_train_epochs=1),
            train_dataset=ragged, data_collator=pad),
    Trainer(llama(), arguments(bf16=True, optim="sgd", num_train_epochs=1), train_dataset=texts),
]
"""
CLASSES = """
trainers = [
    Trainer(bert(), arguments(gradient_accumulation_steps=2, label_smoothing_factor=0.1,
                              eval_strategy="steps", eval_steps=2),
            train_dataset=classes, eval_dataset=classes[:9], compute_metrics=accuracy),
    Trainer(bert(), arguments(dataloader_num_workers=1, num_train_epochs=1),
            train_dataset=datasets.Dataset.from_list(ragged[:0] or [
                dict(input_ids=row["input_ids"].tolist(), labels=int(row["labels"]))
                for row in classes])),
    Trainer(bert(), arguments(max_steps=7), train_dataset=Stream(classes)),
]
"""
TRAIN = """
outputs = [trainer.train() for trainer in trainers]
models = [trainer.model for trainer in trainers]
"""


def assert_equal(result: Comparison) -> None:
    """Weights, logs and schedules of all trainers are equal."""
    pairs = zip(result.alone["trainers"], result.ranks["trainers"], strict=True)
    for number, (alone, ranks) in enumerate(pairs):
        tolerance = 2e-3 if alone.args.bf16 else 1e-5
        assert difference(alone.model, ranks.model) < tolerance, number
        padded = alone.train_dataset is result.alone["ragged"]
        without = FLOPS if padded else frozenset()
        assert difference(logged(alone, without), logged(ranks, without)) < tolerance, number
        assert ranks.state.global_step == alone.state.global_step
        assert ranks.lr_scheduler.get_last_lr() == alone.lr_scheduler.get_last_lr()
    for alone, ranks in zip(result.alone["outputs"], result.ranks["outputs"], strict=True):
        assert ranks.training_loss == pytest.approx(alone.training_loss, abs=1e-3)


MATRIX = pytest.mark.matrix("nbmgpu/rank/frameworks")


@pytest.mark.slow
@pytest.mark.parametrize("built", ["in the notebook", pytest.param("in the cell", marks=MATRIX)])
def test_losses_of_tokens_are_divided_by_all_ranks_tokens(tmp_path: Path, built: str) -> None:
    parts = (TRAIN, SETUP + TOKENS) if built == "in the notebook" else (TOKENS + TRAIN, SETUP)
    result = run_both(*parts, prelude="", folder=tmp_path)
    assert_equal(result)
    assert not result.notices


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_curve_has_the_loss_of_each_step(tmp_path: Path, ranks: int) -> None:
    trainer = """
trainer = Trainer(gpt2(), arguments(gradient_accumulation_steps=2), train_dataset=texts)
"""
    result = run_both("trainer.train()", SETUP + trainer, ranks, prelude="", folder=tmp_path)
    curve = result.run.metrics["loss"].dropna().tolist()
    logged_ = [row["loss"] for row in result.alone["trainer"].state.log_history if "loss" in row]
    assert curve == pytest.approx(logged_, abs=1e-3)
    batch = {1: "batch 5 on one rank", 2: "global batch 5 on 2 ranks: 2 or 3 each"}
    assert result.run.record.batch_line == batch[ranks]


@pytest.mark.slow
@pytest.mark.parametrize("built", [pytest.param("in the notebook", marks=MATRIX), "in the cell"])
def test_classification_evaluation_and_streams(tmp_path: Path, built: str) -> None:
    more = """
again = trainers[0].train()
prediction = trainers[0].predict(classes[:7])
predicted = prediction.predictions
metrics = {k: v for k, v in prediction.metrics.items() if k in ("test_loss", "test_accuracy")}
metrics |= {k: v for k, v in trainers[0].evaluate().items() if k in ("eval_loss", "eval_accuracy")}
"""
    cell, setup = (
        (TRAIN, SETUP + CLASSES) if built == "in the notebook" else (CLASSES + TRAIN, SETUP)
    )
    result = run_both(cell + more, setup, prelude="", folder=tmp_path)
    assert_equal(result)
    assert result.difference("metrics") < 1e-5
    assert result.difference("predicted") < 1e-5
    assert {"loss", "lr", "grad_norm", "eval_loss", "eval_accuracy"} <= set(result.run.view.curves)
    for trainer in result.ranks["trainers"]:
        modules = {type(c).__module__ for c in trainer.callback_handler.callbacks}
        assert all(module.startswith("transformers.") for module in modules)
        assert not any("nbmgpu" in repr(value) for value in vars(trainer).values())


CHECKPOINTS = """
trainer = Trainer(
    bert(),
    arguments(num_train_epochs=4, eval_strategy="epoch", save_strategy="epoch", save_total_limit=2,
              load_best_model_at_end=True, metric_for_best_model="loss"),
    train_dataset=classes, eval_dataset=classes[:9], compute_metrics=accuracy,
    callbacks=[EarlyStoppingCallback(1)],
)
model, identity = trainer.model, id(trainer.model)
"""
RESUME = """
trainer.train()
best = {k: v.clone() for k, v in trainer.model.state_dict().items()}
trainer.save_model("final")
resumed = Trainer(bert(), arguments(num_train_epochs=5), train_dataset=classes)
resumed.train(resume_from_checkpoint=trainer.state.best_model_checkpoint)
resumed_model = resumed.model
"""


@pytest.mark.slow
def test_checkpoints_are_written_once_and_resumed_from(tmp_path: Path) -> None:
    result = run_both(RESUME, SETUP + CHECKPOINTS, prelude="", folder=tmp_path)
    assert result.difference("best") < 1e-5
    assert result.difference("model") < 1e-5
    assert result.difference("resumed_model") < 1e-5
    assert id(result.ranks["model"]) == result.ranks["identity"]
    assert result.ranks["trainer"].model is result.ranks["model"]
    assert result.ranks["trainer"].optimizer.state
    for folder in ("out", "final"):
        alone, ranks = tmp_path / "alone" / folder, tmp_path / "ranks" / folder
        names = [sorted(str(p.relative_to(f)) for p in f.rglob("*")) for f in (alone, ranks)]
        assert names[0] == names[1]
    from safetensors.torch import load_file

    best = Path(result.ranks["trainer"].state.best_model_checkpoint).name
    saved = [load_file(tmp_path / s / "out" / best / "model.safetensors")
             for s in ("alone", "ranks")]  # fmt: skip
    assert difference(*saved) < 1e-5
    states = [json.loads((tmp_path / s / "out" / best / "trainer_state.json").read_text())
              for s in ("alone", "ranks")]  # fmt: skip
    assert states[0]["best_metric"] == pytest.approx(states[1]["best_metric"], abs=1e-5)
    optimizers = [torch.load(tmp_path / s / "out" / best / "optimizer.pt")["state"]
                  for s in ("alone", "ranks")]  # fmt: skip
    assert difference(*optimizers) < 1e-5


def test_per_rank_batches_make_fewer_steps(tmp_path: Path) -> None:
    make = "trainer = Trainer(bert(), arguments({}), train_dataset=classes)\ntrainer.train()\n"
    larger = make.format("per_device_train_batch_size=10"), SETUP
    result = run_both(
        make.format(""), SETUP, alone=larger, prelude="", folder=tmp_path, batch="per-rank"
    )
    alone, ranks = result.alone["trainer"], result.ranks["trainer"]
    assert ranks.state.max_steps == alone.state.max_steps
    assert difference(alone.model, ranks.model) < 1e-5
    assert difference(logged(alone)[:-1], logged(ranks)[:-1]) < 1e-5


def test_under_none_a_trainer_uses_the_process_group(tmp_path: Path) -> None:
    shared = notebook(SETUP, prelude="")
    cell = """
trainer = Trainer(bert(), arguments(num_train_epochs=1), train_dataset=classes)
world = trainer.args.world_size
index = trainer.args.process_index
trainer.train()
weight = trainer.model.classifier.weight.detach().clone()
del trainer
"""
    with working_directory(tmp_path):
        run = nbmgpu.run(cell, shared, gpus=2, cpu=True, strategy="none")
    assert [run.results[rank]["world"] for rank in (0, 1)] == [2, 2]
    assert [run.results[rank]["index"] for rank in (0, 1)] == [0, 1]
    assert run.results[0]["weight"].equal(run.results[1]["weight"])


LOADED = """
model = LlamaForCausalLM.from_pretrained("saved", {arguments})
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for rows in torch.arange(32).view(4, 1, 8).repeat(1, 4, 1):
    optimizer.zero_grad()
    model(input_ids=rows, labels=rows).loss.backward()
    optimizer.step()
"""


def test_a_model_loaded_with_a_tp_plan_is_split_by_the_strategy(tmp_path: Path) -> None:
    for side in ("alone", "ranks"):
        with working_directory(tmp_path / side):
            notebook(SETUP, prelude="")["llama"]().save_pretrained("saved")
    plain, planned = LOADED.format(arguments=""), LOADED.format(arguments='tp_plan="auto"')
    result = run_both(
        planned, SETUP, alone=(plain, SETUP), prelude="", folder=tmp_path, strategy="tp"
    )
    assert result.difference() < 1e-5
    assert result.run.view.reports.shards
    for arguments, strategy, line in (
        ('tp_plan="auto"', "ddp", "--strategy tp"),
        ("tp_plan='auto', tp_size=4", "tp", "--strategy tp --gpus 4"),
        ("tp_plan={'layers.*.mlp.up_proj': 'colwise'}", "tp", "--strategy tp --tp-plan <its name>"),
    ):
        cell, found = LOADED.format(arguments=arguments), notebook(SETUP, prelude="")
        with (
            working_directory(tmp_path / "ranks"),
            pytest.raises(StrategyError, match=rf"\nTry: %%mgpu {line}$"),
        ):
            nbmgpu.run(cell, found, gpus=2, cpu=True, strategy=strategy)


def test_another_distribution_is_refused(tmp_path: Path) -> None:
    shared = notebook(SETUP, prelude="")
    cell = """
args = arguments()
args.deepspeed = "settings.json"
Trainer(bert(), args, train_dataset=classes)
"""
    (tmp_path / "settings.json").write_text('{"tensor_parallel": {"autotp_size": 2}}')
    with (
        working_directory(tmp_path),
        pytest.raises(StrategyError, match=r"deepspeed=.*\n.*\nTry: %%mgpu --strategy tp --gpus 2"),
    ):
        nbmgpu.run(cell, shared, gpus=2, cpu=True)


HIDDEN_STATES = """
with torch.no_grad():
    output = model.eval()(ids, output_hidden_states=True, output_attentions=True)
sums = [float(x.sum()) for x in (*output.hidden_states, *output.attentions)]
del output
"""


@pytest.mark.parametrize("before", ["", HIDDEN_STATES], ids=["never returned", "returned before"])
def test_a_model_from_the_notebook_returns_hidden_states_and_attentions(before: str) -> None:
    setup = SETUP + "model = llama()\nmodel.set_attn_implementation('eager')\n" + before
    result = run_both(HIDDEN_STATES, setup, 2, strategy="ddp")
    assert len(result.alone["sums"]) == 5
    assert result.ranks["sums"] == pytest.approx(result.alone["sums"], abs=1e-4)
