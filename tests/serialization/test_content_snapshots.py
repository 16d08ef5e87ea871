"""Long lists, dicts and sets are sent back only if they have changed."""

import pytest
import torch

SETUP = """
import torch
texts = [f"text {n}" for n in range(100)]
rows = [[n, n + 1] * 20 for n in range(50)]
pairs = [(f"text {n}", n) for n in range(100)]
found = {f"key {n}": n for n in range(100)}
words = {f"word {n}" for n in range(100)}
tensors = [torch.ones(2) * n for n in range(100)]
held = [([n], torch.ones(1)) for n in range(50)]
class Item: pass
items = [Item() for _ in range(50)]
ring = [0] * 50
ring.append(ring)
"""
NAMES = ("texts", "rows", "pairs", "found", "words", "tensors", "held", "items", "ring")


def test_unchanged_containers_are_not_sent_back(notebook):
    notebook.cell("texts = ['many words ' * n for n in range(2000)]\ndata = {'texts': texts}")
    before = notebook["texts"], list(map(id, notebook["texts"]))
    notebook.mgpu("assert len(data['texts']) == 2000 and data['texts'] is texts")
    assert notebook.storages[-1].nbytes < 10_000
    assert notebook["texts"] is before[0]
    assert list(map(id, notebook["texts"])) == before[1]


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ("texts[50] = 'another'", "texts[50] == 'another' and len(texts) == 100"),
        ("del texts[50:]", "len(texts) == 50"),
        ("texts.append('one more')", "texts[-1] == 'one more' and len(texts) == 101"),
        ("texts.sort(reverse=True)", "texts[0] == 'text 99'"),
        ("texts += texts[:3]; del texts[:3]", "texts[:2] == ['text 3', 'text 4']"),
        ("rows[7].append(5)", "rows[7][-1] == 5 and rows[6][-1] == 7"),
        ("rows[7][0] = True", "rows[7][0] is True"),
        ("rows[1][1] = 2.0", "type(rows[1][1]) is float"),
        ("rows[3] = rows[4]", "rows[3] is rows[4]"),
        ("pairs[3] = ('text 3', 3.0)", "type(pairs[3][1]) is float"),
        ("found['key 7'] = 'seven'", "found['key 7'] == 'seven'"),
        ("found['key 7'] = found.pop('key 7')", "list(found)[-1] == 'key 7'"),
        ("found.clear()", "found == {}"),
        ("words.discard('word 7')", "len(words) == 99"),
        ("words.discard('word 7'); words.add('x')", "'x' in words and 'word 7' not in words"),
        ("tensors[7] += 1", "tensors[7][0] == 8 and tensors[8][0] == 8"),
        ("tensors[7] = tensors[8]", "tensors[7] is tensors[8]"),
        ("held[7][0].append(1)", "held[7][0] == [7, 1]"),
        ("held[7][1].mul_(3)", "held[7][1].item() == 3"),
        ("items[7].x = texts", "items[7].x is texts"),
        ("items[7].x = items", "items[7].x is items"),
        ("ring[3] = ring", "ring[3] is ring is ring[-1]"),
        ("ring[-1][0] = 1", "ring[0] == 1"),
    ],
)
def test_changed_items_are_restored(notebook, change, same):
    notebook.cell(SETUP)
    before = {name: notebook[name] for name in NAMES}
    others = {name: list(map(id, notebook[name])) for name in ("texts", "pairs", "items")}
    returned = notebook.mgpu(change)
    assert returned.lost == returned.refused == {}
    assert eval(same, dict(notebook.namespace))
    assert all(notebook[name] is value for name, value in before.items())
    for name, ids in others.items():
        if name not in change:
            assert list(map(id, notebook[name])) == ids


def test_a_long_list_that_is_restored_twice_is_one_object(notebook):
    notebook.cell("texts = [str(n) for n in range(100)]\nboth = [texts, texts]")
    notebook.mgpu("new = {'a': texts, 'b': both}")
    assert notebook["new"]["a"] is notebook["texts"]
    assert notebook["new"]["b"] is notebook["both"]


def test_an_unpicklable_item_of_a_long_list_is_named(notebook):
    notebook.cell("import torch\nmany = [[n] for n in range(100)]\nt = torch.ones(3)")
    returned = notebook.mgpu("many[7].append(n for n in range(3)); t += 1")
    assert list(returned.lost) == ["many[7]"]
    assert torch.equal(notebook["t"], torch.full((3,), 2.0))
