"""The advisor: which strategy to take for a model, and why.

``consult`` is where a question comes in and an ``Advice`` goes out.  On the way: ``count``
looks at model and optimizer, ``rehearsal`` plays a training step without memory,
``memory`` says what a rank of each strategy would hold, ``machine`` what there is room for,
``speed`` what is to be expected, ``recommendation`` chooses.  Nothing here knows notebooks
or widgets, and nothing imports torch before it is asked something.
"""

from .advice import Advice, Estimate
from .advisor import advise

__all__ = ["Advice", "Estimate", "advise"]
