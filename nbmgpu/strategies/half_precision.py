"""The half-precision dtypes that options, and DeepSpeed's configuration, name."""

from __future__ import annotations

import torch

HALF_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Dtypes by the values of ``--precision`` and ``--compress``, which are DeepSpeed's keys, too."""
