"""Idioms of tests/numerics that fsdp and zero2 do not train as one device does: none.

LBFGS steps on whole parameters, gathered for it, and the notice ``whole-steps-LBFGS`` says
what that costs.
"""

EXCEPTIONS: dict[str, tuple[str, str]] = {}
