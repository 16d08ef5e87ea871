"""Every notice is known to explain another loss, or not to."""

import re
from pathlib import Path

import nbmgpu
from nbmgpu.comparison.trial import DIFFERS, MAY_DIFFER

SAME_LOSS = {
    "auto-batch-size",
    "autocast-off",
    "deepspeed-lost",
    "deepspeed-overflow",  # with half precision alone, for which there is a tolerance
    "dp",
    "find-unused",
    "logged-on-some",
    "lost-states",
    "metric-share",
    "no-blocks",
    "not-sharded",
    "not-trained",
    "rank-0-values",
    "steps",
    "wandb",
    "whole-batches",
}
"""What is said of something else: speed, metrics, what comes back."""

SAID = re.compile(r"\.(?:notice|say|note)\(\s*\"([a-z0-9-]+)\"")


def test_every_topic_is_known_to_explain_another_loss_or_not_to():
    sources = Path(nbmgpu.__file__).parent.rglob("*.py")
    said = {topic for path in sources for topic in SAID.findall(path.read_text())}
    assert said >= {"random-step", "by-chance", "came-apart", "compress", "steps"}
    assert said == DIFFERS.keys() | MAY_DIFFER.keys() | SAME_LOSS
    assert not DIFFERS.keys() & MAY_DIFFER.keys()
