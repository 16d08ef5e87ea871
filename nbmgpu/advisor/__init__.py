"""The advisor: recommends a strategy for a model, with estimates of memory and speed.

``advise`` creates a ``ModelAdvisor``, which answers an ``AdviceRequest`` with an ``Advice``:
``model_size`` measures the model and the optimizer, ``fake_step`` a training step on fake tensors;
``model_parts`` says what a rank has of a model, and ``running_region`` and ``shared_attention``
what it has of a step.  ``memory_model`` and ``model_parallel_memory`` estimate the memory of a rank
in each of the ``row_kinds``, ``speed_model`` its speed;
``available_memory`` measures what is free, and ``recommendation`` chooses.  Nothing here depends
on notebooks or widgets, and torch is not imported until a model is given.
"""

from .advice import Advice, Estimate
from .advisor import advise

__all__ = ["Advice", "Estimate", "advise"]
