"""Every notice topic is classified by whether it explains a different loss."""

import re
from pathlib import Path

import nbmgpu
from nbmgpu.rank.reporting.shard_topics import OTHER_NUMBERS
from nbmgpu.runs.number_topics import DIFFERS, MAY_DIFFER, OTHER_VALUES, REASONS

SAME_LOSS = {
    "device-not-profiled",
    "auto-batch-size",
    "autocast-off",
    "deepspeed-states-lost",
    "deepspeed-overflow",  # only with half precision, which has a tolerance
    "checkpoint-failed",
    "data-parallel",
    "find-unused",
    "idle-devices",
    "idle-stages",
    "left-out",
    "gpu-memory",
    "unread-gpu-memory",
    "held",
    "logged-on-some-ranks",
    "on-host",
    "optimizer-states-lost",
    "model-parallel",
    "no-checkpoint-blocks",
    "no-checkpoints",
    "no-sequence",
    "not-resumed",
    "not-profiled",
    "not-sharded",
    "no-batch",
    "not-spread",
    "not-trained",
    "profiler-failed",
    "profiler-of-cell",
    "part-of-batch-left",
    "rank-0-values",
    "step-limit",
    "unsharded-batches",
}
"""Notices about something else: speed, metrics, write-back."""

NOTICE_CALL = re.compile(r"\.(?:notice|say|note)\(\s*\"([a-z0-9-]+)\"")


def test_every_topic_is_in_exactly_one_group():
    sources = Path(nbmgpu.__file__).parent.rglob("*.py")
    topics = {topic for path in sources for topic in NOTICE_CALL.findall(path.read_text())}
    assert topics >= {
        "random-step",
        "ambiguous-size",
        "different-weights",
        "compress",
        "step-limit",
    }
    groups = (DIFFERS.keys(), MAY_DIFFER.keys(), OTHER_VALUES.keys(), SAME_LOSS)
    assert sorted(topics) == sorted(topic for group in groups for topic in group)


def test_every_reason_to_start_again_can_be_told():
    assert REASONS.keys() >= OTHER_NUMBERS
