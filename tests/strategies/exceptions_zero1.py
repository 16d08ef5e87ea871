"""Idioms of tests/numerics that zero1 does not train as one device does, and why."""

LBFGS = "one line search over all parameters, of which a rank has only its own"

EXCEPTIONS: dict[str, tuple[str, str]] = {
    "LBFGS": ("refused", LBFGS),
    "LBFGS, strong Wolfe": ("refused", LBFGS),
    "LBFGS made in the cell": ("refused", LBFGS),
    "LBFGS on the whole data": ("refused", LBFGS),
}
