"""Idioms of tests/numerics that pp does not train as one device does, and why."""

NO_LAYERS = ("refused", "the model has no layers that two ranks could share")
IN_BETWEEN = ("refused", "the output of a layer is needed before later layers run")

NO_CACHE = "out: keys ['loss', 'logits', 'past_key_values'] on one device, ['loss', 'logits'] on"
"""How outputs of Hugging Face's models differ: in training, they have no key-value cache."""

WITH_CACHE = {"GPT-2, out.loss / accumulation"}
"""Idioms that look at such outputs."""

EXCEPTIONS: dict[str, tuple[str, str]] = {
    "LBFGS on the whole data": (
        "differs",
        "its line search amplifies the rounding of sums that are computed in parts",
    ),
    "a gradient penalty": ("refused", "the graph of each layer is on one rank"),
    "checkpoint, reentrant": IN_BETWEEN,
    "checkpoint, reentrant, a layer used twice": IN_BETWEEN,
    "features for a head": NO_LAYERS,
    "SparseAdam": NO_LAYERS,
    "SGD on a sparse embedding": NO_LAYERS,
    "one optimizer on two models": NO_LAYERS,
    "weight tying": NO_LAYERS,
    "an LSTM": NO_LAYERS,
    "packed sequences": NO_LAYERS,
    "heads in a list, an optimizer each, for parts of a batch": NO_LAYERS,
}
