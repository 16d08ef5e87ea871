"""Counts what makes a host wait in training steps on the stand-in device; prints JSON.

Run with the stand-in device on PYTHONPATH: ``python tests/standin/count_steps.py STRATEGY ...``.
``by hand`` is DDP in the cell itself, with strategy ``none``.
"""

from __future__ import annotations

import json
import sys

from idioms.notebook import notebook

import nbmgpu

TRAIN = """
import standin
def train(model):
    for x, y in batches:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
"""

COUNT = """
train(model)  # the first steps prepare
lines = standin.sources()
before = standin.counts()
for _ in range(EPOCHS):
    train(model)
after = standin.counts()
standin.native.set_listener(None)
counts = {name: after[name] - before[name] for name in after}
lines = dict(lines)
"""

SETUP = "EPOCHS = 3\nbatches = DataLoader(dataset, batch_size=8)\n"

BY_HAND = (
    "from torch.nn.parallel import DistributedDataParallel\n"
    "model = DistributedDataParallel(model)\n"
)


def main() -> None:
    counted = {}
    for strategy in sys.argv[1:]:
        namespace = notebook(SETUP)
        by_hand = strategy == "by hand"
        cell = TRAIN + (BY_HAND if by_hand else "") + COUNT + "del model" * by_hand
        nbmgpu.run(cell, namespace, gpus=2, verify=0, strategy="none" if by_hand else strategy)
        counted[strategy] = namespace["counts"] | {"lines": namespace["lines"]}
        print(json.dumps({strategy: counted[strategy]}), file=sys.stderr)
    print(json.dumps(counted))


if __name__ == "__main__":
    main()
