"""Rules of operators on matrices, spectra and sorted sequences: they combine what is along them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .elementwise_ops import elementwise
from .op_call import OpCall, OutputTags
from .reduction_ops import dims_of
from .tags import Batched, SampleSum

MATRIX_OPS = (
    "_linalg_det", "_linalg_eigh", "_linalg_slogdet", "_linalg_solve_ex", "_linalg_svd",
    "cholesky_inverse", "cholesky_solve", "geqrf", "linalg_cholesky_ex", "linalg_eig",
    "linalg_eigvals", "linalg_householder_product", "linalg_inv_ex", "linalg_ldl_factor_ex",
    "linalg_ldl_solve", "linalg_lstsq", "linalg_lu", "linalg_lu_factor_ex", "linalg_lu_solve",
    "linalg_matrix_exp", "linalg_pinv", "linalg_qr", "linalg_solve_triangular", "lu_unpack",
    "ormqr", "trace", "triangular_solve",
)  # fmt: skip
"""Operators on the matrices in the last two dimensions."""

FOURIER_OPS = "_fft_c2c", "_fft_c2r", "_fft_r2c"


def on_matrices(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Factorizations, solutions and determinants."""
    if any(isinstance(tag, Batched) and tag.dim >= -2 for tag in call.tags):
        return [call.cross_sample()] * len(outputs)
    return [elementwise(call, output) for output in outputs]


def along_dims(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Fourier transforms along some dimensions, and rotations in the plane of two."""
    tag, count = call.first_tag, len(call.first_shape)
    if isinstance(tag, Batched) and count + tag.dim in dims_of(call, count):
        return [call.cross_sample()] * len(outputs)
    return [tag] * len(outputs)


def renorm(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Limit the norm of each slice along a dimension."""
    tag, count = call.first_tag, len(call.first_shape)
    is_local = not isinstance(tag, Batched) or call.arguments["dim"] % count == count + tag.dim
    return [tag if is_local else call.cross_sample()]


def diagonals(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Matrices with the last dimension on their diagonals."""
    tag, arguments = call.first_tag, call.arguments
    if not isinstance(tag, Batched):
        return [tag]
    is_last = (arguments["dim1"], arguments["dim2"]) == (-2, -1)
    return [replace(tag, dim=tag.dim - 1) if is_last and tag.dim < -1 else call.cross_sample()]


def diagonal(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """The diagonals of matrices, as a new last dimension."""
    tag, count = call.first_tag, len(call.first_shape)
    if not isinstance(tag, Batched):
        return [tag]
    own, plane = count + tag.dim, {call.arguments[dim] % count for dim in ("dim1", "dim2")}
    right = sum(dim > own for dim in {*range(count)} - plane)
    return [call.cross_sample() if own in plane else replace(tag, dim=-right - 2)]


def at_positions(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Elements that are kept or replaced by their positions along some dimensions."""
    tag, shape = call.tag_of("self"), tuple(outputs[0].shape)
    if not isinstance(tag, Batched):
        return [elementwise(call, outputs[0])]
    named = [call.arguments[name] for name in ("dim", "dim1", "dim2") if name in call.arguments]
    dims = {dim % len(shape) for dim in named or (-2, -1)}
    return [call.cross_sample() if len(shape) + tag.dim in dims else tag]


def histogram(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Counts of values, to which each sample adds; the range may be that of all values."""
    has_range = call.name != "histc" or call.arguments["min"] != call.arguments["max"]
    counts = SampleSum(call.first_tag.sources) if has_range else call.cross_sample()
    return [counts] * len(outputs)


def search(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Positions in a sorted sequence, along its last dimension."""
    tag = call.tag_of("sorted_sequence" if call.name == "searchsorted" else "boundaries")
    if isinstance(tag, Batched) and tag.dim == -1:
        return [call.cross_sample()]
    return [elementwise(call, output) for output in outputs]
