"""Round trips of objects of other libraries."""

import pytest


def run(notebook, before, cell, after=""):
    notebook.cell(before)
    ids = {name: id(value) for name, value in notebook.namespace.items()}
    returned = notebook.mgpu(cell)
    assert returned.lost == returned.refused == {}
    notebook.cell(after)
    return [name for name, value in ids.items() if id(notebook.namespace[name]) != value]


class TestPandas:
    def test_frames_and_series_change_in_place(self, notebook):
        before = """
import pandas as pd, numpy as np
df = pd.DataFrame({
    "f": np.arange(2000.), "i": np.arange(2000), "s": ["a", "b"] * 1000,
    "c": pd.Categorical(["x", "y"] * 1000), "n": pd.array([1, None] * 1000, dtype="Int64"),
}, index=pd.date_range("2020", periods=2000, freq="h", tz="UTC"))
ser = df["f"]; multi = df.set_index(["s", "i"]); held = {"df": df}
types = df.dtypes.to_dict()
"""
        cell = """
assert held["df"] is df and df.dtypes.to_dict() == types and df.index.freqstr == "h"
assert df.s.iloc[1] == "b" and df.n.isna().sum() == 1000 and multi.loc[("b", 1), "f"] == 1
df.loc[df.index[0], "f"] = 99.0; df["new"] = df.s + "!"; del df["i"]; ser.iloc[1] = -5
means = df.groupby("c", observed=True).f.mean(); top = df.head()
"""
        after = """
assert held["df"] is df and df.f.iloc[0] == 99 and df.new.iloc[0] == "a!" and "i" not in df
assert ser.iloc[1] == -5 and len(means) == 2 and top.shape == (5, 5)
assert df.index.tz is not None and df.c.dtype == "category"
"""
        changed = run(notebook, before, cell, after)
        assert not {"df", "ser", "multi", "held"} & set(changed)

    def test_shared_memory_is_copied_before_a_write(self, notebook):
        before = """
import pandas as pd
df = pd.DataFrame({"a": [1., 2.], "b": [3., 4.], "c": ["x", "y"]})
column, copied, kept = df["a"], df.copy(deep=False), df.drop(columns="c")
one = pd.DataFrame({"a": [1., 2.]}); of_one = one["a"]; index = pd.Index(one["a"])
read = pd.DataFrame({"a": [1., 2.]}); alias = read.rename(columns={"a": "b"})
"""
        cell = """
df.loc[0, "a"] = 9.0
assert column[0] == copied.a[0] == kept.a[0] == 1
of_one[0] = 5.0
assert one.a[0] == index[0] == 1
assert len(read) == 2
"""
        after = """
assert df.a[0] == 9 and column[0] == copied.a[0] == kept.a[0] == 1
assert of_one[0] == 5 and one.a[0] == index[0] == 1
read.loc[0, "a"] = 7.0; kept.loc[0, "b"] = 7.0; one.loc[0, "a"] = 7.0
assert alias.b[0] == 1 and df.b[0] == copied.b[0] == 3 and of_one[0] == 5 and index[0] == 1
"""
        run(notebook, before, cell, after)

    def test_writes_are_not_restored_into_objects_that_were_not_sent(self, notebook):
        notebook.cell(
            "import pandas as pd\ndf = pd.DataFrame({'a': [1., 2.]})\n"
            "stayed = df.rename(columns={'a': 'b'})"
        )
        notebook.mgpu("df.loc[0, 'a'] = 9.0", "df")
        notebook.cell("assert df.a[0] == 9 and stayed.b[0] == 1")


class TestDatasets:
    @pytest.fixture
    def hf(self, notebook, tmp_path, monkeypatch):
        pytest.importorskip("datasets")
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        notebook.cell("import numpy as np, datasets\ndatasets.disable_progress_bars()")
        return notebook

    def test_datasets_on_disk_are_sent_by_path(self, hf, tmp_path):
        hf.cell(f"""
data = datasets.Dataset.from_dict({{"x": np.random.rand(20_000, 16), "y": np.arange(20_000)}})
data.save_to_disk({str(tmp_path / "d")!r})
data = datasets.load_from_disk({str(tmp_path / "d")!r}).with_format("torch")
some = data.select(range(100, 200)); both = datasets.DatasetDict(train=data)
""")
        bundle = hf.serialize("data", "some", "both")
        assert bundle.nbytes < 50_000
        table = hf["data"]._data.table
        run(
            hf,
            "",
            "assert both['train'] is data and len(data) == 20_000 and data[3]['y'] == 3\n"
            "assert some[0]['y'] == 100\nx = data[5]['x']; "
            "odd = data.filter(lambda r: r['y'] % 2 == 1)",
            "assert both['train'] is data and odd[0]['y'] == 1 and data[7]['y'] == 7",
        )
        assert hf["data"]._data.table is table

    def test_datasets_in_memory_are_mapped_and_not_sent_back(self, hf):
        hf.cell(
            "rows = {'x': np.random.rand(100_000, 4), 't': ['a'] * 100_000}\n"
            "data = datasets.Dataset.from_dict(rows)"
        )
        bundle = hf.serialize("data")
        assert len(bundle.stream) < 20_000
        import os

        rank = hf.start(hf.write(bundle), "assert data[4]['t'] == 'a'; x = data[2]['x']")
        rank.wait()
        assert os.stat(rank.result.path).st_size < 30_000


class TestTransformers:
    def test_tokenizer_and_model(self, notebook):
        pytest.importorskip("transformers")
        before = """
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, BertConfig, BertForSequenceClassification
raw = Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1, "hi": 2, "you": 3}, unk_token="[UNK]"))
raw.pre_tokenizer = pre_tokenizers.Whitespace()
tok = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="[UNK]", pad_token="[PAD]")
config = BertConfig(vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                    intermediate_size=8)
model = BertForSequenceClassification(config)
import torch
opt = torch.optim.SGD(model.parameters(), lr=1.0)
"""
        cell = """
batch = tok(["hi you", "hi"], padding=True, return_tensors="pt")
assert batch["input_ids"].tolist() == [[2, 3], [2, 1]] and model.config is config
model.eval()
out = model(**batch, labels=torch.tensor([0, 1]))
out.loss.backward(); opt.step()
logits = model(**batch).logits.detach()
"""
        after = """
assert model.config is config and tok(["you"])["input_ids"] == [[3]]
assert torch.allclose(model(**batch).logits, logits, atol=1e-6) and not model.training
assert out.loss.ndim == 0 and type(out).__name__ == "SequenceClassifierOutput"
assert model.get_input_embeddings().weight is opt.param_groups[0]["params"][0]
"""
        changed = run(notebook, before, cell, after)
        assert not {"tok", "model", "config", "opt"} & set(changed)


class TestLoaders:
    BEFORE = """
import torch
from torch.utils.data import *
class Rows(Dataset):
    def __init__(self): self.x, self.seen = torch.arange(10.), []
    def __len__(self): return 10
    def __getitem__(self, i): return self.x[i]
data = Rows(); g = torch.Generator().manual_seed(1)
def join(rows): return torch.stack(rows)
"""

    @pytest.mark.parametrize(
        "arguments",
        [
            "batch_size=4",
            "batch_size=4, shuffle=True, generator=g, collate_fn=join",
            "batch_size=4, sampler=WeightedRandomSampler([1.0] * 10, 10, generator=g)",
            "batch_sampler=BatchSampler(SequentialSampler(data), 3, False)",
            "batch_size=4, num_workers=1, worker_init_fn=lambda i: None",
        ],
    )
    def test_loader_and_dataset(self, notebook, arguments):
        changed = run(
            notebook,
            self.BEFORE + f"loader = DataLoader(data, {arguments}); part = Subset(data, [1, 2])",
            "assert loader.dataset is data is part.dataset\n"
            "if loader.generator is not None: assert loader.generator is g\n"
            "sizes = [len(b) for b in loader]; data.seen.append(1); "
            "part2 = random_split(data, [5, 5])",
            "assert loader.dataset is data and data.seen == [1] and sum(sizes) == 10\n"
            "assert part2[0].dataset is data\n"
            "if loader.generator is not None: assert loader.generator is g",
        )
        assert "loader" not in changed

    def test_a_loader_with_persistent_workers(self, notebook):
        run(
            notebook,
            self.BEFORE + "loader = DataLoader(data, 5, num_workers=1, persistent_workers=True)\n"
            "first = list(loader)",
            "assert len(list(loader)) == 2",
            "assert len(list(loader)) == 2\nloader._iterator._shutdown_workers(); "
            "loader._iterator = None",
        )

    def test_tensor_datasets_share_the_tensors(self, notebook):
        run(
            notebook,
            self.BEFORE + "X = torch.zeros(10, 3); loader = DataLoader(TensorDataset(X), 5)",
            "assert loader.dataset.tensors[0] is X\nX[0] = 1",
            "assert loader.dataset.tensors[0] is X and X[0, 0] == 1",
        )


class TestOthers:
    def test_sklearn(self, notebook):
        pytest.importorskip("sklearn")
        changed = run(
            notebook,
            "import numpy as np\nfrom sklearn.ensemble import RandomForestClassifier\n"
            "from sklearn.pipeline import make_pipeline\n"
            "from sklearn.preprocessing import StandardScaler\n"
            "X = np.random.rand(50, 3); y = (X[:, 0] > 0.5).astype(int)\n"
            "forest = RandomForestClassifier(3); pipe = make_pipeline(StandardScaler(), forest)\n"
            "done = RandomForestClassifier(3).fit(X, y); expected = done.predict(X)",
            "assert (done.predict(X) == expected).all()\npipe.fit(X, y); p = pipe.predict(X)",
            "assert (pipe.predict(X) == p).all() and pipe[1] is forest",
        )
        assert not {"forest", "pipe", "done"} & set(changed)

    def test_pillow(self, notebook):
        pytest.importorskip("PIL")
        changed = run(
            notebook,
            "from PIL import Image\nim = Image.new('RGB', (20, 10), 'red'); im.info['a'] = 1",
            "assert im.getpixel((0, 0)) == (255, 0, 0) and im.info['a'] == 1\n"
            "im.putpixel((1, 1), (0, 0, 9)); small = im.resize((2, 2))",
            "assert im.getpixel((1, 1)) == (0, 0, 9) and small.size == (2, 2)",
        )
        assert "im" not in changed

    def test_matplotlib_figures(self, notebook):
        pytest.importorskip("matplotlib")
        run(
            notebook,
            "import matplotlib; matplotlib.use('agg')\nfrom matplotlib.figure import Figure\n"
            "fig = Figure(); ax = fig.subplots()",
            "ax.plot([1, 2]); fig2 = Figure()",
            "assert len(ax.lines) == 1 and ax.figure is fig",
        )


def test_modules_of_a_class_of_their_own_are_those_of_the_rank(notebook):
    """Functions that make a training reproducible set attributes of ``torch.backends.cudnn``."""
    run(
        notebook,
        "import torch\ncudnn = torch.backends.cudnn\n"
        "def seed(): torch.backends.cudnn.benchmark = False; return torch.backends.cudnn",
        "import sys; same = seed() is cudnn is sys.modules['torch.backends.cudnn']",
        "assert same",
    )
