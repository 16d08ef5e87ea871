"""Idioms of tests/numerics that tp does not train as one device does, and why."""

EXCEPTIONS: dict[str, tuple[str, str]] = {
    "LBFGS on the whole data": (
        "differs",
        "its line search amplifies the rounding of sums that are computed in parts",
    ),
}
