"""Does a step treat the samples of its batch one by one, or together?

Ranks train on slices of the global batch, so a step is one device's only where the loss is
an average, or a sum, of what each sample gives by itself.  A contrastive loss compares the
samples of a batch with one another, an advantage is normalised over its batch, hard samples
are picked among all: with a slice that is something else.  No autograd graph tells, since
much of it happens in data.  So every operation of a few steps is looked at: which sample
each part of a tensor belongs to is followed from the loader's batch to the loss.

``tags`` has what is known of a tensor, ``rules`` what operations do to that, ``kept`` what
outlives the step, ``watch`` sees the operations, ``coupling`` chooses the steps and tells people
what was found.  What no rule covers is forgotten: then nothing is claimed.
"""

from .detector import SPLIT_BY_COUNT, BatchDependenceDetector

__all__ = ["SPLIT_BY_COUNT", "BatchDependenceDetector"]
