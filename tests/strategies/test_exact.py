"""``--exact always``: every cell has the numbers of one device, also where samples interact."""

from __future__ import annotations

import itertools
import textwrap

import pytest
from exceptions_zero1 import EXCEPTIONS as REFUSED_BY_ZERO1
from idioms import notices
from idioms.comparison import Comparison, compare_whole_batches
from idioms.idiom import TRAIN, Idiom, idiom
from idioms.notebook import DEVICE, notebook
from idioms.tables import BY_NAME
from idioms.whole_batch import CELLS, LATE, LAYERS, SEEN, meeting_late, model
from matrix_selection import sampled

import nbmgpu
from nbmgpu.errors import OptionError, StrategyError
from nbmgpu.options.run_options import RunOptions

EXERCISED = ("nbmgpu/strategies/exact", "nbmgpu/strategies/sequence", "tests/idioms")

CACHE = "in training, models of Hugging Face return no key-value cache"
GROWS = "its weights grow without bound, and so does rounding"

SHARDING = ("nbmgpu/strategies/fsdp", "nbmgpu/strategies/deepspeed")

EXCEPTIONS = {
    "LBFGS on the whole data": "its line search amplifies the rounding of sums computed in parts",
    "GPT-2, tied, -100": CACHE,
    "Llama, -100": CACHE,
    "GPT-2, out.loss / accumulation": CACHE,
    "T5": CACHE,
    "a sum over a variance that is a tensor": GROWS,
    "a number times the size of the batch, in a function": GROWS,
    "a sum and a term over fixed points": GROWS,
}
"""Cells that leave other numbers than one device, and why."""


def exact(cell: Idiom, ranks: int = 2, strategy: str = "ddp", **options: object) -> Comparison:
    """Compare a cell, with the rounding of sums that are computed in parts, at every layer."""
    return compare_whole_batches(cell, ranks, strategy=strategy, exact="always", **options)


def notices_of(result: Comparison) -> set[str]:
    """Return the notices of a cell; on a GPU, kernels that draw dropout run on the whole batch."""
    if DEVICE == "cpu":
        return set(result.notices)
    return {topic for topic in result.notices if not topic.startswith("whole-batch-")}


def check(name: str, result: Comparison) -> None:
    """Fail with what differs, unless it is known."""
    if name in EXCEPTIONS:
        assert all(EXCEPTIONS[name] != CACHE or "past_key" in line for line in result.wrong)
        assert result.wrong, f"{name} is equal now: remove it from the table"
        pytest.xfail(EXCEPTIONS[name])
    result.assert_equal()


@pytest.mark.parametrize(
    ("strategy", "cell"),
    sampled(itertools.product(("ddp", "zero1", "fsdp"), BY_NAME.values()), 113, *EXERCISED),
)
def test_every_idiom(strategy: str, cell: Idiom) -> None:
    if strategy == "zero1" and cell.name in REFUSED_BY_ZERO1:
        with pytest.raises(StrategyError):
            exact(cell, strategy=strategy)
        return
    check(cell.name, exact(cell, strategy=strategy))


@pytest.mark.parametrize(
    ("name", "of"),
    sampled(notices.TOPICS.items(), 23, *EXERCISED, ids=notices.TOPICS),
)
def test_cells_that_are_given_a_notice_without_it(name: str, of: tuple[str, str, str]) -> None:
    topic, cell, setup = of
    result = exact(idiom(name, cell, setup=setup, curve=False))
    check(name, result)
    assert topic not in result.notices


WHOLE = {"instance norm": {"whole-batch-2 (InstanceNorm2d)"}}
"""Modules that run on the whole batch: instance norm averages its statistics over samples."""


@pytest.mark.parametrize("cell", sampled(((cell,) for cell in CELLS), 7, *EXERCISED))
def test_cells_whose_samples_interact(cell: Idiom) -> None:
    result = exact(cell)
    result.assert_equal()
    assert notices_of(result) == (WHOLE.get(cell.name, set()) if DEVICE == "cpu" else set())


SHARDED = {
    "fsdp": {},
    "fsdp, by layers": {"strategy": "fsdp", "fsdp_units": ("Linear",)},
    "zero2": {"strategy": "zero2", "fsdp_units": ("Linear",)},
    "hsdp": {"ranks": 4},
    "deepspeed_stage_1": {},
    "deepspeed_stage_2": {},
}
"""Strategies that average gradients, and how they are run."""


@pytest.mark.parametrize(
    ("name", "cell"), sampled(itertools.product(SHARDED, CELLS), 61, *EXERCISED, *SHARDING)
)
def test_cells_whose_samples_interact_under_sharding(name: str, cell: Idiom) -> None:
    result = exact(cell, **{"strategy": name, **SHARDED[name]})
    result.assert_equal()
    assert not {topic for topic in result.notices if not topic.startswith("whole-batch-")}


BETWEEN = """
x, y = X[:8], Y[:8]
seen, opt.param_groups[0]["foreach"] = [], False
for step in range(3):
    opt.zero_grad()
    out = model(x)
    loss = F.cross_entropy(out, y) + 1e-2 * sum(p.square().sum() for p in model.parameters())
    found = torch.autograd.grad(loss, model[0].weight, retain_graph=True, create_graph=step == 1)
    seen.append(found[0].detach().clone())
    (loss + found[0].square().sum() if step == 1 else loss).backward()
    seen.append(nn.utils.clip_grad_norm_(model.parameters(), 0.2))
    seen += [p.grad.clone() for p in model.parameters()]
    opt.step()
with torch.no_grad():
    seen.append(model.eval()(X))
"""


@pytest.mark.parametrize("name", ["fsdp", "fsdp, by layers"])
def test_gradients_that_the_cell_reads_are_whole(name: str) -> None:
    cell = idiom("reads", BETWEEN, setup=model(LAYERS["dropout"]), curve=False)
    exact(cell, **{"strategy": name, **SHARDED[name]}).assert_equal()


@pytest.mark.parametrize("name", LATE)
def test_samples_that_meet_after_the_first_batches(name: str) -> None:
    cell, setup = LATE[name]
    exact(idiom(name, cell, setup=setup, curve=False)).assert_equal()


def test_samples_that_meet_in_a_way_no_trial_sees_are_found_later() -> None:
    """The branch depends on a variable that is not the module's; the reference sees it as well."""
    setup = meeting_late("""
        if len(losses) >= 20:
            h = h - h.mean(0)
    """)
    cell = "for epoch in range(8):" + textwrap.indent(TRAIN, "    ")
    result = exact(idiom("late", cell, setup=setup, curve=False))
    assert result.wrong
    assert result.notices == {"late-Late", "other-gradients"}
    assert "from here on" in result.run.view.notices["late-Late"].text


UNEVEN = [
    next(cell for cell in CELLS if cell.name == name)
    for name in (
        "batch norm and dropout of images", "transformer with dropout",
        "LSTM with dropout, batch first", "GAN with spectral norm and a gradient penalty",
    )
]  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "cell"), sampled(itertools.product((3, 4), UNEVEN), 8, *EXERCISED)
)
def test_uneven_samples(ranks: int, cell: Idiom) -> None:
    """Of 8 samples, three ranks have 3, 3 and 2; of 4, they have 2, 2 and none."""
    result = exact(cell, ranks)
    result.assert_equal()
    assert not notices_of(result)


def test_states_are_sharded_under_zero1() -> None:
    setup = model(LAYERS["batch norm and dropout of images"])
    exact(idiom("zero1", TRAIN, setup=setup), strategy="zero1").assert_equal()
    names = notebook(setup)
    cell = TRAIN + "\nheld = len([*dict.keys(opt.state)])"
    run = nbmgpu.run(cell, names, gpus=2, cpu=True, strategy="zero1", exact="always")
    held = [run.results[rank]["held"] for rank in (0, 1)]
    assert sum(held) == len([*names["model"].parameters()])
    assert all(held)


OPTIONS = ("checkpointing", "accumulate", "clip", "steps", "precision")


@pytest.mark.parametrize(
    ("option", "strategy"), sampled(itertools.product(OPTIONS, ("ddp", "fsdp")), 3, *EXERCISED)
)
def test_options(option: str, strategy: str) -> None:
    value = {"accumulate": 2, "clip": 0.1, "steps": 5, "precision": "bf16"}.get(option, True)
    body = """
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3)) for _ in "123")
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            for layer in self.layers:
                x = x + torch.tanh(layer(x))
            return self.head(x)
    """
    losses = {}
    options = {option: value, "strategy": strategy}
    for ranks, choice in ((1, "never"), (2, "always")):
        names = notebook(textwrap.dedent(f"    class Model(nn.Module):{body}") + model("Model()"))
        run = nbmgpu.run(TRAIN, names, gpus=ranks, cpu=True, exact=choice, **options)
        losses[ranks] = names["losses"]
    assert losses[2] == pytest.approx(losses[1], rel=2e-2 if option == "precision" else 1e-5)
    assert not run.view.notices.keys() - {"devices", "step-limit"}


def test_each_rank_computes_its_samples() -> None:
    names = notebook(SEEN)
    run = nbmgpu.run(TRAIN, names, gpus=2, cpu=True, exact="always")
    assert names["rows"][-6:] == [4, 4, 4, 4, 4, 2]
    assert not run.view.notices.keys() - {"devices"}


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_each_rank_computes_its_samples_of_an_evaluation(mode: str) -> None:
    cell = f"""
model.eval()
with torch.{mode}():
    outputs = [model(x) for x, y in loader]
"""
    names = notebook(SEEN)
    run = nbmgpu.run(TRAIN + cell, names, gpus=2, cpu=True, exact="always")
    assert names["rows"][-4:] == [4, 4, 4, 2]
    assert not run.view.notices.keys() - {"devices"}


NEAR = """
class Near(Net):
    def forward(self, x, y):
        return 1 + 1e-4 * F.cross_entropy(super().forward(x), y)

model = Near()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""


def test_a_mean_loss_near_that_of_some_samples_is_of_all() -> None:
    cell = """
for x, y in loader:
    opt.zero_grad()
    model(x, y).backward()
    opt.step()
with torch.no_grad():
    values = [model(x, y).item() for x, y in loader]
"""
    run = nbmgpu.run(cell, notebook(NEAR), gpus=2, cpu=True, exact="always")
    assert run.results[0]["values"] == run.results[1]["values"]


def test_what_runs_on_the_whole_batch_is_named() -> None:
    cell = next(cell for cell in CELLS if cell.name == "instance norm")
    text = exact(cell).run.view.notices["whole-batch-2 (InstanceNorm2d)"].text
    assert "runs on the whole batch on every rank" in text


def test_nothing_is_left_on_the_model() -> None:
    names = notebook(model(LAYERS["batch norm and dropout of images"]))
    attributes = [dict(vars(m)).keys() for m in names["model"].modules()]
    functions = names["F"].batch_norm, names["nn"].Linear.forward
    nbmgpu.run(TRAIN, names, gpus=2, cpu=True, exact="always")
    assert [dict(vars(m)).keys() for m in names["model"].modules()] == attributes
    assert (names["F"].batch_norm, names["nn"].Linear.forward) == functions


@pytest.mark.parametrize(
    ("line", "message", "instead"),
    [
        ("--strategy tp --exact always", "only ddp, zero1, zero2", "--strategy ddp --exact always"),
        (
            "--strategy deepspeed_stage_3 --exact always",
            "ties modules to its engine",
            "--strategy fsdp --exact always",
        ),
        ("--exact always --batch per-rank", "no batch for each rank", "ddp --exact always"),
        ("--exact always --compress bf16", "it rounds gradients", "ddp --exact always"),
        ("--exact always --compile", "compiled graph", "ddp --exact always"),
        ("--exact sometimes", "always: the cell sees whole batches", "--strategy ddp"),
    ],
)
def test_what_is_refused(line: str, message: str, instead: str) -> None:
    with pytest.raises(OptionError, match=message) as error:
        RunOptions.parse(line)
    assert str(error.value).endswith(instead)


CHANGING_HASH = """
class Metric(nn.Module):
    def __init__(self):
        super().__init__()
        self.state = ()

    def __hash__(self):
        return hash(self.state)

    def forward(self, x):
        self.state = *self.state, len(x)
        return x

model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), Metric(), nn.Linear(8, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""


def test_modules_are_known_by_identity() -> None:
    """The hash of a metric of torchmetrics changes with its state."""
    result = exact(idiom("a hash that changes", TRAIN, setup=CHANGING_HASH))
    result.assert_equal()
    assert result.ranks["model"][2].state == (8, 8, 8, 8, 8, 4) * 2
