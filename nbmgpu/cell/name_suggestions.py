"""What to suggest for a name that exists neither in the notebook nor in the cell."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Iterable

from nbmgpu.errors import closest_match

CONVENTIONAL_IMPORTS = {
    "np": "import numpy as np",
    "pd": "import pandas as pd",
    "plt": "import matplotlib.pyplot as plt",
    "mpl": "import matplotlib as mpl",
    "sns": "import seaborn as sns",
    "px": "import plotly.express as px",
    "sp": "import scipy as sp",
    "sk": "import sklearn as sk",
    "nx": "import networkx as nx",
    "xr": "import xarray as xr",
    "pa": "import pyarrow as pa",
    "tf": "import tensorflow as tf",
    "jnp": "import jax.numpy as jnp",
    "L": "import lightning as L",
    "pl": "import pytorch_lightning as pl",
    "F": "import torch.nn.functional as F",
    "nn": "from torch import nn",
    "optim": "from torch import optim",
    "dist": "import torch.distributed as dist",
    "mp": "import torch.multiprocessing as mp",
    "DDP": "from torch.nn.parallel import DistributedDataParallel as DDP",
    "FSDP": "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP",
    "T": "from torchvision import transforms as T",
    "transforms": "from torchvision import transforms",
    "tqdm": "from tqdm.auto import tqdm",
    "trange": "from tqdm.auto import trange",
    "SummaryWriter": "from torch.utils.tensorboard import SummaryWriter",
    "Path": "from pathlib import Path",
    "partial": "from functools import partial",
    "defaultdict": "from collections import defaultdict",
    "Counter": "from collections import Counter",
    "dataclass": "from dataclasses import dataclass",
    **{
        name: f"from torch.utils.data import {name}"
        for name in (
            "DataLoader", "Dataset", "DistributedSampler", "IterableDataset", "Subset",
            "TensorDataset", "random_split",
        )
    },
    **{
        name: f"import {name}"
        for name in (
            "accelerate", "collections", "copy", "cv2", "datetime", "functools", "glob",
            "itertools", "json", "math", "nbmgpu", "numpy", "os", "pandas", "pickle", "random",
            "re", "shutil", "sklearn", "sys", "time", "torch", "torchaudio", "torchvision",
            "transformers", "wandb",
        )
    },
}  # fmt: skip
"""Import statements of names that are conventional in notebooks that train models."""


def nearest_name(name: str, candidates: Iterable[str], attributes: Collection[str]) -> str | None:
    """Return the candidate that is spelled most like ``name``, or None.

    Args:
        name: a name that exists nowhere.
        candidates: names that exist, builtins among them.
        attributes: the attributes that the cell reads from ``name``.  A builtin that lacks one of
            them is not meant: ``dist.all_reduce`` does not mean ``list.all_reduce``.
    """
    return closest_match(
        name, sorted(other for other in candidates if _has_attributes(other, attributes))
    )


def _has_attributes(name: str, attributes: Collection[str]) -> bool:
    """Return whether ``name`` is not a builtin, or has all ``attributes``."""
    if not hasattr(builtins, name):
        return True
    return all(hasattr(getattr(builtins, name), attribute) for attribute in attributes)
