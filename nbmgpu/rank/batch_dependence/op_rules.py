"""The rule of each operator: from the tags of its operands to those of its outputs.

Operator names are ATen's, without the overload and the underscore of in-place variants.  The
dispatch mode observes operators below autograd, where only a few hundred exist.  A rule returns
one tag per output: None if the output belongs to no sample, or if nothing is known about it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from . import indexing_ops, layout_ops, matrix_ops, reduction_ops, selection_ops
from .elementwise_ops import COMPARISON_OPS, elementwise, reduced_loss
from .op_call import OpCall, OutputTags
from .reduction_ops import MATMUL_OPERANDS, SUM_OPS
from .tags import Batched, CrossSample, Guard, SingleSample, Tag


def output_tags(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Return the tags of the ``outputs`` of ``call``."""
    if any(isinstance(tag, Guard) for tag in call.tags):
        others: list[Tag | None] = [None if isinstance(t, Guard) else t for t in call.tags]
        if not any(others):
            return [Guard() if call.name in LOGICAL_OPS else None] * len(outputs)
        call = replace(call, tags=others)
    call = _without_single_samples(call)
    tags = [tag for tag in call.tags if tag is not None]
    name = call.name
    if name in UNTRACKED_OPS or "." in name or not name:
        return [None] * len(outputs)
    cross_sample = next((tag for tag in tags if isinstance(tag, CrossSample)), None)
    if cross_sample is not None:
        return [cross_sample] * len(outputs)
    by_prefix = (rule for prefix, rule in RULES_BY_PREFIX if name.startswith(prefix))
    rule = RULES.get(name) or next(by_prefix, None)
    if rule is not None:
        return rule(call, outputs)
    if call.arguments.get("reduction", 0) != 0:
        return [reduced_loss(call, tags), *[None] * (len(outputs) - 1)]
    return [elementwise(call, output) for output in outputs]


def _without_single_samples(call: OpCall) -> OpCall:
    """Return ``call`` without the tags of single samples if all rows belong to the same one.

    A shard of one sample loses its batch dimension with ``squeeze()``, and its targets do not.
    """
    rows = {sample for tag in call.tags if isinstance(tag, Batched) for sample in tag.samples}
    singles = [tag for tag in call.tags if isinstance(tag, SingleSample)]
    if not singles or {tag.sample for tag in singles} != rows:
        return call
    others: list[Tag | None] = [None if isinstance(t, SingleSample) else t for t in call.tags]
    return replace(call, tags=others)


LOGICAL_OPS = {
    "logical_not", "logical_and", "logical_or", "bitwise_and", "bitwise_or", "bitwise_not", "any",
    "all", "view", "clone", "_to_copy",
}  # fmt: skip
"""Operators whose output is a guard if their operands are."""

LOSING_OPS = {
    "_pack_padded_sequence", "_pad_packed_sequence", "as_strided", "unfold", "set", "index_copy",
    "as_strided_scatter", "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate",
}  # fmt: skip
"""Operators that no rule covers, although their outputs depend on samples."""

UNTRACKED_OPS = LOSING_OPS | {
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like",
    "randint_like", "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided",
    "fill", "zero", "normal", "uniform", "bernoulli", "random", "_local_scalar_dense",
    "is_same_size", "equal", "resize",
}  # fmt: skip
"""Those, and operators whose outputs do not depend on values of their operands."""


def loses_samples(call: OpCall, tags: OutputTags) -> bool:
    """Return whether outputs of ``call``, with ``tags``, depend on samples no longer tracked."""
    if call.name in LOSING_OPS:
        return True
    if call.writes and call.tags[0] is None:
        return True  # ``outputs[t] = ...``, into a tensor of no batch
    return call.name not in UNTRACKED_OPS | COMPARISON_OPS and bool(tags) and tags[0] is None


Rule = Callable[[OpCall, Sequence[Any]], OutputTags]


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("view", "_unsafe_view", "reshape", "_reshape_alias", "alias"), layout_ops.view
    ),
    **dict.fromkeys(
        ("detach", "clone", "_to_copy", "lift_fresh", "contiguous"), layout_ops.unchanged
    ),
    "permute": layout_ops.permute,
    **dict.fromkeys(("transpose", "t"), layout_ops.transpose),
    "unsqueeze": layout_ops.unsqueeze,
    "squeeze": layout_ops.squeeze,
    "expand": layout_ops.unchanged,
    "repeat": layout_ops.repeat,
    **dict.fromkeys(
        ("_cdist_forward", "_euclidean_dist", "_pdist_forward"), reduction_ops.pairwise_distance
    ),
    **dict.fromkeys(
        (*SUM_OPS, "var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm", "amax",
         "amin", "aminmax", "max", "min", "argmax", "argmin", "logsumexp", "prod", "median",
         "nanmedian", "any", "all", "count_nonzero", "kthvalue", "mode"), reduction_ops.reduce,
    ),
    **dict.fromkeys(
        ("_softmax", "_log_softmax", "_safe_softmax", "cumsum", "cumprod", "cummax", "cummin",
         "logcumsumexp", "topk"), reduction_ops.along_dim,
    ),
    **dict.fromkeys(("bincount", "histc"), matrix_ops.histogram),
    **dict.fromkeys(matrix_ops.MATRIX_OPS, matrix_ops.on_matrices),
    **dict.fromkeys((*matrix_ops.FOURIER_OPS, "rot90"), matrix_ops.along_dims),
    "renorm": matrix_ops.renorm,
    "diag_embed": matrix_ops.diagonals,
    **dict.fromkeys(("diagonal", "diagonal_copy"), matrix_ops.diagonal),
    **dict.fromkeys(
        ("triu", "tril", "diagonal_scatter", "select_scatter", "slice_scatter"),
        matrix_ops.at_positions,
    ),
    **dict.fromkeys(("searchsorted", "bucketize"), matrix_ops.search),
    **dict.fromkeys(("sort", "argsort"), selection_ops.sort),
    **dict.fromkeys(("flip", "roll"), layout_ops.flip_or_roll),
    "select": selection_ops.select,
    "slice": selection_ops.slice_dim,
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "unsafe_split"), selection_ops.split),
    "unbind": selection_ops.unbind,
    **dict.fromkeys(("cat", "stack"), layout_ops.concatenate),
    **dict.fromkeys(MATMUL_OPERANDS, reduction_ops.matmul),
    "index_select": indexing_ops.index_select,
    "index": indexing_ops.index,
    "index_add": indexing_ops.index_add,
    "masked_select": indexing_ops.masked_select,
    "nonzero": indexing_ops.nonzero,
    **dict.fromkeys(("gather", "scatter", "scatter_add"), indexing_ops.gather),
    "scatter_reduce": indexing_ops.scatter_reduce,
    "index_put": indexing_ops.index_put,
    **dict.fromkeys(
        ("index_reduce", "_unique", "_unique2", "unique_dim", "unique_consecutive",
         "unique_dim_consecutive", "put", "take"), reduction_ops.across_samples,
    ),
    "embedding": layout_ops.embedding,
    "copy": layout_ops.copy,
}  # fmt: skip
"""The rules of operators for which ``elementwise`` is not enough."""


RULES_BY_PREFIX: tuple[tuple[str, Rule], ...] = (
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
"""Rules of operators that have a name per device, by the prefix of their names."""
