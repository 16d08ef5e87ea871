"""torch's global settings, which determine the numbers that a cell computes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from operator import attrgetter
from typing import Any

THREADS = "get_num_threads"
"""The one setting that belongs to a process: a rank has its share of the machine's cores."""

ATTRIBUTES = (
    "backends.cudnn.allow_tf32",
    "backends.cudnn.benchmark",
    "backends.cudnn.benchmark_limit",
    "backends.cudnn.depthwise_kernel",
    "backends.cudnn.deterministic",
    "backends.cudnn.enabled",
    "backends.cuda.matmul.allow_fp16_accumulation",
    "backends.miopen.immediate",
    "backends.mkldnn.deterministic",
    "backends.mkldnn.enabled",
    "backends.quantized.engine",
    "utils.deterministic.fill_uninitialized_memory",
)
"""Settings that are attributes, as paths from torch."""

FUNCTIONS = (
    ("get_default_dtype", "set_default_dtype"),
    ("get_float32_matmul_precision", "set_float32_matmul_precision"),
    ("is_grad_enabled", "set_grad_enabled"),
    ("is_warn_always_enabled", "set_warn_always"),
    ("is_autocast_cache_enabled", "set_autocast_cache_enabled"),
    ("backends.cuda.flash_sdp_enabled", "backends.cuda.enable_flash_sdp"),
    ("backends.cuda.mem_efficient_sdp_enabled", "backends.cuda.enable_mem_efficient_sdp"),
    ("backends.cuda.math_sdp_enabled", "backends.cuda.enable_math_sdp"),
    ("backends.cuda.cudnn_sdp_enabled", "backends.cuda.enable_cudnn_sdp"),
    (
        "backends.cuda.fp16_bf16_reduction_math_sdp_allowed",
        "backends.cuda.allow_fp16_bf16_reduction_math_sdp",
    ),
    *(
        (f"backends.cuda.preferred_{kind}_library",) * 2
        for kind in ("blas", "linalg", "rocm_fa")
    ),
    ("backends.mha.get_fastpath_enabled", "backends.mha.set_fastpath_enabled"),
    *(
        (f"__future__.get_{name}", f"__future__.set_{name}")
        for name in (
            "overwrite_module_params_on_conversion", "swap_module_params_on_conversion",
        )
    ),
)  # fmt: skip
"""Settings that a function returns and another sets, as paths from torch."""

PRECISIONS = (
    ("generic", "all"),
    *((backend, op) for backend in ("cuda", "mkldnn") for op in ("all", "matmul", "conv", "rnn")),
)
"""Keys of ``torch.backends.*.fp32_precision``, from the general to the particular."""

AUTOCAST_DEVICES = "cpu", "cuda"


@dataclass(frozen=True)
class Setting:
    """One global setting of torch.

    Attributes:
        name: what errors and captured settings call it.
        read: returns its value; raises ``AttributeError`` where torch does not have it, and
            ``RuntimeError`` where another setting has replaced it.
        write: sets it.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]

    def value(self) -> Any:
        """Return the value; None if there is none."""
        with suppress(AttributeError, RuntimeError):
            return self.read()
        return None

    def apply(self, wanted: Any) -> None:
        """Set the value only if it differs: some setters import all of torch's compiler."""
        if wanted is None or self.value() == wanted:
            return
        try:
            self.write(wanted)
        except (AttributeError, RuntimeError) as error:  # of another build or machine
            text = f"the notebook's torch.{self.name} = {wanted!r} is not possible here: {error}"
            warnings.warn(text, stacklevel=2)


def capture() -> dict[str, Any]:
    """Return the settings of this process by name; none where torch is not imported."""
    if sys.modules.get("torch") is None:
        return {}
    return {setting.name: setting.value() for setting in _settings()}


def apply(settings: dict[str, Any]) -> None:
    """Apply settings captured in another process, but no more threads than this one has."""
    if not settings:
        return
    for setting in _settings():
        wanted = settings.get(setting.name)
        if setting.name == THREADS and wanted is not None:
            wanted = min(setting.read(), wanted)
        setting.apply(wanted)


@cache
def _settings() -> tuple[Setting, ...]:
    """Return all settings; one that sets others as well comes before them."""
    import torch

    return (
        *(_functions(*names) for names in FUNCTIONS),
        *map(_attribute, ATTRIBUTES),
        *(
            Setting(f"fp32_precision of {' '.join(key)}", *_precision(torch, *key))
            for key in PRECISIONS
        ),
        *map(_reduction, ("fp16", "bf16")),
        *map(_autocast, AUTOCAST_DEVICES),
        Setting(
            "use_deterministic_algorithms",
            lambda: (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            lambda wanted: torch.use_deterministic_algorithms(wanted[0], warn_only=wanted[1]),
        ),
        Setting(
            "autograd.set_detect_anomaly",
            lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            lambda wanted: torch.autograd.set_detect_anomaly(*wanted),
        ),
        Setting(
            "sparse.check_sparse_tensor_invariants",
            torch.sparse.check_sparse_tensor_invariants.is_enabled,
            lambda on: (
                torch.sparse.check_sparse_tensor_invariants.enable()
                if on
                else torch.sparse.check_sparse_tensor_invariants.disable()
            ),
        ),
        Setting(
            "backends.nnpack",
            torch._C._get_nnpack_enabled,
            torch.backends.nnpack.set_flags,
        ),
        Setting("backends.opt_einsum", *_einsum(torch.backends.opt_einsum)),
        # torch has no getter, but Python's numbers are computed in the same mode of the processor.
        Setting(
            "set_flush_denormal",
            lambda: sys.float_info.min / 2 == 0.0,
            torch.set_flush_denormal,
        ),
        _functions(THREADS, "set_num_threads"),
    )


def _functions(getter: str, setter: str) -> Setting:
    def call(path: str, *args: Any) -> Any:
        return attrgetter(path)(sys.modules["torch"])(*args)  # an older torch has not all of them

    return Setting(getter, partial(call, getter), partial(call, setter))


def _attribute(path: str) -> Setting:
    owner, _, name = path.rpartition(".")

    def write(wanted: Any) -> None:
        setattr(attrgetter(owner)(sys.modules["torch"]), name, wanted)

    # An older torch has not all of the modules: torch.backends.miopen is there since 2.9.
    return Setting(path, lambda: attrgetter(path)(sys.modules["torch"]), write)


def _reduction(dtype: str) -> Setting:
    """Return the setting of reductions in half precision; since torch 2.10 it has two parts."""
    name = f"allow_{dtype}_reduced_precision_reduction"
    whole = _attribute(f"backends.cuda.matmul.{name}")
    split_k = _attribute(f"backends.cuda.matmul.{name}_split_k")

    def write(wanted: tuple[bool, bool | None]) -> None:
        whole.write(wanted[0] if wanted[1] is None else wanted)

    return Setting(whole.name, lambda: (whole.read(), split_k.value()), write)


def _autocast(device: str) -> Setting:
    """Return the setting of autocast of a kind of device: whether it is on, and its dtype."""
    import torch

    def write(wanted: tuple[bool, Any]) -> None:
        torch.set_autocast_enabled(device, wanted[0])
        torch.set_autocast_dtype(device, wanted[1])

    return Setting(
        f"autocast of {device}",
        lambda: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)),
        write,
    )


def _einsum(module: Any) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """Return how to read and write whether einsum looks for a path, and how."""

    def write(wanted: tuple[bool, str | None]) -> None:
        enabled, strategy = wanted
        if strategy is not None and module.is_available():
            module.set_flags(True, strategy)  # it may be set only where paths are looked for
        module.set_flags(enabled)

    return lambda: (module.enabled, module.strategy), write


def _precision(
    torch: Any, backend: str, op: str
) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    """Return how to read and write an ``fp32_precision``, which torch has since 2.9."""
    return (
        lambda: torch._C._get_fp32_precision_getter(backend, op),
        lambda wanted: torch._C._set_fp32_precision_setter(backend, op, wanted),
    )
