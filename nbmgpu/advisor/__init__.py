"""The advisor: recommends a strategy for a model, with estimates of memory and speed.

``advise`` creates a ``ModelAdvisor``, which answers an ``AdviceRequest`` with an ``Advice``:
``model_size`` measures the model and the optimizer, ``fake_step`` a training step on fake tensors;
``memory_model`` estimates the memory of a rank under each strategy, ``speed_model`` its speed;
``available_memory`` measures what is free, and ``recommendation`` chooses.  Nothing here depends
on notebooks or widgets, and torch is not imported until a model is given.
"""

from .advice import Advice, Estimate
from .advisor import advise

__all__ = ["Advice", "Estimate", "advise"]
