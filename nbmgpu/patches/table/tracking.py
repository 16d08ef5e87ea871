"""What a rank replaces in libraries that log, measure and show progress."""

from __future__ import annotations

from .build import added, patched, private
from .libraries import (
    AIM,
    COMET,
    IPYTHON,
    MLFLOW,
    TENSORBOARD,
    TENSORBOARDX,
    TORCHMETRICS,
    TQDM,
    WANDB,
)

RUN = "wandb.Run"
LOGS_ONCE = "Rank 0 logs for all ranks, to the run that the notebook has started."
GOES_ON = "The notebook's active runs are those of the cell, and the other way round."
STORE = "_get_store_with_resolved_uri"

ENTRIES = (
    *patched(
        TORCHMETRICS, "torchmetrics.Metric", "_wrap_update",
        "A metric that covers one rank's shard of a batch is reported.",
    ),
    *patched(
        TORCHMETRICS, "torchmetrics.Metric", "sync",
        "An evaluation covers the whole data on every rank, so metrics do not add up.",
    ),
    *patched(WANDB, "wandb", "init _attach", LOGS_ONCE),
    *added(WANDB, "wandb", "__getattr__", "The notebook's run is joined at its first use."),
    *patched(
        WANDB, "wandb",
        "run config summary log watch unwatch save use_artifact log_artifact log_model use_model "
        "link_model define_metric mark_preempting alert",
        "wandb's module-level functions log to the run that was joined.",
    ),
    *patched(
        WANDB, "wandb.integration.torch.wandb_torch", "torch",
        "wandb.watch() imports torch when it is called; hooks arrive here before that.",
    ),
    *patched(
        WANDB, "wandb.sdk.wandb_init", "init", "Pickles name wandb.init by its own module."
    ),
    *patched(
        WANDB, RUN, "finish _finish",
        "A joined run goes on in the notebook, which ends it.",
    ),
    *private(
        WANDB, RUN, "_is_finished _settings",
        "A run is joined, and a disabled run has the joined one's folder and settings.",
    ),
    *private(
        WANDB, "wandb.sdk.wandb_config.Config", "_update",
        "The settings of the notebook's run are taken over without a message to the server.",
    ),
    *patched(TENSORBOARD, "torch.utils.tensorboard.writer", "FileWriter", LOGS_ONCE),
    *private(
        TENSORBOARDX, "tensorboardX.SummaryWriter", "_filename_suffix",
        "Files of one second would have the same name.",
    ),
    *patched(
        MLFLOW, "mlflow.tracking._tracking_service.registry.TrackingStoreRegistry", STORE, LOGS_ONCE
    ),
    *patched(
        MLFLOW, "mlflow.tracking._model_registry.registry.ModelRegistryStoreRegistry", STORE,
        LOGS_ONCE,
    ),
    *patched(
        MLFLOW, "mlflow.tracking._tracking_service.client.TrackingServiceClient",
        "_get_artifact_repo", LOGS_ONCE,
    ),
    *private(
        MLFLOW, "mlflow.tracking.fluent",
        "_active_run_stack _active_experiment_id _last_active_run_id", GOES_ON,
    ),
    *private(MLFLOW, "mlflow.tracking._model_registry.utils", "_registry_uri", GOES_ON),
    *patched(COMET, "comet_ml", "get_running_experiment get_global_experiment", LOGS_ONCE),
    *patched(COMET, "comet_ml.OfflineExperiment", "__init__", LOGS_ONCE),
    *patched(COMET, "comet_ml.Experiment", "__init__", LOGS_ONCE),
    *patched(AIM, "aim", "Run", LOGS_ONCE),
    *patched(
        TQDM, "tqdm.std.tqdm", "__init__ display close", "The panel shows one bar for all ranks."
    ),
    *patched(
        TQDM, "tqdm", "notebook", "A rank has no front end for the widgets of tqdm.notebook."
    ),
    *patched(
        IPYTHON, "IPython.core.compilerop.CachingCompiler", "get_code_name",
        "The cell has a file name by which its frames are recognized.",
    ),
    *private(
        IPYTHON, "IPython.core.compilerop.CachingCompiler", "_filename_map",
        "Functions of the notebook are shown with their source in tracebacks.",
    ),
)  # fmt: skip
