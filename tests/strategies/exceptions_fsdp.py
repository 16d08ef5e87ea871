"""Idioms of tests/numerics that fsdp and zero2 do not train as one device does.

LBFGS steps on full parameters, gathered for it; the notice ``whole-steps-LBFGS`` states the cost.
"""

MODULES = "a rank whose samples take it past a module is not there when that is gathered"

EXCEPTIONS: dict[str, tuple[str, str]] = {
    "heads in a list, an optimizer each, for parts of a batch": ("refused", MODULES),
}
