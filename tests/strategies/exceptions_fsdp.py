"""Idioms of tests/numerics that fsdp and zero2 do not train as one device does.

LBFGS steps on whole parameters, gathered for it, and the notice ``whole-steps-LBFGS`` says
what that costs.
"""

MODULES = "a rank whose samples take it past a module is not there when that is gathered"

EXCEPTIONS: dict[str, tuple[str, str]] = {
    "heads in a list, an optimizer each, for parts of a batch": ("refused", MODULES),
}
