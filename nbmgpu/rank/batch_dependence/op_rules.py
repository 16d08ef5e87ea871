"""What operations do to tags.

Names are ATen's, without the overload and the underscore of operations in place: what is
seen lies below autograd, where a few hundred operations are all there is.  A rule returns the
tag of each result; None where the result is of no sample, or where nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import indexing_ops, layout_ops, reduction_ops, selection_ops
from .elementwise_ops import ASKS, each, loss
from .op_call import Call, Found
from .reduction_ops import ADDS, MATRICES
from .row_tags import Coupled


def after(call: Call, outs: Sequence[Any]) -> Found:
    """Return the tags of the results ``outs`` of ``call``."""
    tags = [tag for tag in call.tags if tag is not None]
    name = call.name
    if name in MAKES_NEW or "." in name or not name:
        return [None] * len(outs)
    coupled = next((tag for tag in tags if isinstance(tag, Coupled)), None)
    if coupled is not None:
        return [coupled] * len(outs)
    rule = RULES.get(name) or next((r for start, r in FAMILIES if name.startswith(start)), None)
    if rule is not None:
        return rule(call, outs)
    if call.named.get("reduction", 0) != 0:
        return [loss(call, tags), *[None] * (len(outs) - 1)]
    return [each(call, out) for out in outs]


MAKES_NEW = {
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like",
    "randint_like", "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided",
    "fill", "zero", "normal", "uniform", "bernoulli", "random", "_local_scalar_dense",
    "is_same_size", "equal", "_pack_padded_sequence", "_pad_packed_sequence", "as_strided",
    "unfold", "set", "resize", "index_add", "index_put", "index_copy", "index_reduce",
}  # fmt: skip
"""Operations that take no values from what they are given, or lead where no rule does."""


LOSES = {
    "_pack_padded_sequence", "_pad_packed_sequence", "as_strided", "unfold", "set", "index_add",
    "index_put", "index_copy", "index_reduce",
}  # fmt: skip
"""Those of ``MAKES_NEW`` that do take values from samples."""


def loses(call: Call, found: Found) -> bool:
    """Tell whether what ``call`` gives has samples in it, of which nothing is known any more."""
    if call.name in LOSES:
        return True
    if call.writes and call.tags[0] is None:
        return True  # ``outputs[t] = ...``, where that is of no batch
    return call.name not in MAKES_NEW | ASKS and bool(found) and found[0] is None


Rule = Callable[[Call, Sequence[Any]], Found]


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("view", "_unsafe_view", "reshape", "_reshape_alias", "alias"), layout_ops.view
    ),
    **dict.fromkeys(("detach", "clone", "_to_copy", "lift_fresh", "contiguous"), layout_ops.same),
    "permute": layout_ops.permute,
    **dict.fromkeys(("transpose", "t"), layout_ops.transpose),
    "unsqueeze": layout_ops.unsqueeze,
    "squeeze": layout_ops.squeeze,
    "expand": layout_ops.same,
    "repeat": layout_ops.repeated,
    **dict.fromkeys(("_cdist_forward", "_euclidean_dist", "_pdist_forward"), reduction_ops.pairs),
    **dict.fromkeys(
        (*ADDS, "var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm", "amax",
         "amin", "aminmax", "max", "min", "argmax", "argmin", "logsumexp", "prod", "median",
         "nanmedian", "any", "all", "count_nonzero"), reduction_ops.reduced,
    ),
    **dict.fromkeys(
        ("_softmax", "_log_softmax", "_safe_softmax", "cumsum", "cumprod", "cummax", "cummin",
         "logcumsumexp", "topk", "kthvalue", "mode"), reduction_ops.along,
    ),
    **dict.fromkeys(("bincount", "histc"), reduction_ops.tallied),
    **dict.fromkeys(("sort", "argsort"), selection_ops.in_order),
    **dict.fromkeys(("flip", "roll"), layout_ops.reordered),
    "select": selection_ops.selected,
    "slice": selection_ops.sliced,
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "unsafe_split"), selection_ops.parted),
    "unbind": selection_ops.unbound,
    **dict.fromkeys(("cat", "stack"), layout_ops.joined),
    **dict.fromkeys(MATRICES, reduction_ops.product),
    "index_select": indexing_ops.index_select,
    "index": indexing_ops.indexed,
    "masked_select": indexing_ops.masked_select,
    "nonzero": indexing_ops.nonzero,
    **dict.fromkeys(("gather", "scatter", "scatter_add", "scatter_reduce"), indexing_ops.gather),
    "embedding": layout_ops.embedding,
    "copy": layout_ops.copied,
}  # fmt: skip
"""The rule of each operation that does more than ``each`` knows."""


FAMILIES: tuple[tuple[str, Rule], ...] = (
    ("_scaled_dot_product", reduction_ops.attention),
    ("native_batch_norm", reduction_ops.batch_norm),
    ("_native_batch_norm", reduction_ops.batch_norm),
    ("cudnn_batch_norm", reduction_ops.batch_norm),
    ("miopen_batch_norm", reduction_ops.batch_norm),
    ("_batch_norm_with_update", reduction_ops.batch_norm),
    ("mkldnn_rnn_layer", reduction_ops.recurrent),
    ("_cudnn_rnn", reduction_ops.recurrent),
    ("miopen_rnn", reduction_ops.recurrent),
)
"""Rules of operations with a name for every device, by how it begins."""
