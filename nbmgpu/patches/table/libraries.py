"""The libraries of the patch table, with the versions that the test suite has run with.

Raise ``last`` when the whole suite has passed with a newer version.  Of torch, the whole suite runs
with 2.13; with 2.11 and 2.12 the tests of this table and of strategy fsdp have passed, with 2.11
also those of hsdp and fsdp+tp.
"""

from __future__ import annotations

from dataclasses import replace

from nbmgpu.patches.target import Library

TORCH = Library("torch", "2.11", "2.13", required_for="cells under %%mgpu")
FSDP = replace(TORCH, required_for="--strategy fsdp and zero2")
ADVISOR = replace(TORCH, required_for="%mgpu advise, %mgpu pick and --strategy auto")
NUMPY = Library("numpy", "2.4", "2.4", required_for="cells under %%mgpu")
DEEPSPEED = Library("deepspeed", "0.19", "0.19", required_for="--strategy deepspeed_stage_1 to 3")
LIGHTNING = Library(
    "lightning", "2.6", "2.6", required_for="cells that train with Lightning's Trainer",
    packages=("lightning.pytorch", "pytorch_lightning"),
)  # fmt: skip
ACCELERATE = Library("accelerate", "1.15", "1.15", required_for="cells that use accelerate")
TRANSFORMERS = Library(
    "transformers", "5.23", "5.23", required_for="cells that train with transformers' Trainer"
)
DATASETS = Library("datasets", "5.2", "5.2", required_for="cells that use datasets")
HUB = Library("huggingface_hub", "2.4", "2.4", required_for="cells that download from the Hub")
SAFETENSORS = Library("safetensors", "0.8", "0.8", required_for="cells that save safetensors")
TOKENIZERS = Library("tokenizers", "0.23", "0.23", required_for="cells that save tokenizers")
TORCHMETRICS = Library("torchmetrics", "1.9", "1.9", required_for="cells that use torchmetrics")
WANDB = Library("wandb", "0.31", "0.31", required_for="cells that log to wandb")
TENSORBOARDX = Library("tensorboardX", "2.6", "2.6", required_for="cells that log by tensorboardX")
TENSORBOARD = Library("tensorboard", "2.21", "2.21", required_for="cells that log to TensorBoard")
MLFLOW = Library(
    "mlflow-skinny", "3.17", "3.17", required_for="cells that log to MLflow", packages=("mlflow",)
)
COMET = Library("comet_ml", "3.58", "3.58", required_for="cells that log to Comet")
AIM = Library("aim", "3.29", "3.29", required_for="cells that log to Aim")
TQDM = Library("tqdm", "4.70", "4.70", required_for="cells that show tqdm bars")
IPYTHON = Library("ipython", "9.18", "9.18", required_for="cells under %%mgpu")
CLOUDPICKLE = Library("cloudpickle", "3.1", "3.1", required_for="cells under %%mgpu")
PANDAS = Library("pandas", "3.1", "3.1", required_for="cells under %%mgpu")
PYTHON = Library("", "3.11", "3.11", required_for="cells under %%mgpu")
