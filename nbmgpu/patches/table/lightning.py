"""What a rank replaces in Lightning, and its private names that are used."""

from __future__ import annotations

from .build import patched, private
from .libraries import LIGHTNING

TRAINER, LOOPS = "lightning.pytorch.trainer", "lightning.pytorch.loops"
CONNECTORS = f"{TRAINER}.connectors"
STRATEGIES = "lightning.pytorch.strategies"
RESULT = f"{CONNECTORS}.logger_connector.result"
LOGGER = f"{CONNECTORS}.logger_connector.logger_connector._LoggerConnector"
ONE_DEVICE = "A Trainer stays on the rank's device; ranks distribute its loops."
GLOBAL = "What a training step logs is reduced over ranks."
ONCE = "Ranks run the same Trainer; files are written and decisions are made by rank 0."
READS_AHEAD = "A fetcher reads batches ahead; a batch's step begins when it is handed out."
TRAINS = "Training loops are distinguished from others."
PATCHED = "Its methods are patched."
SAVES = "A Trainer saves when --checkpoint-every is due, and resumes there."
STEP = "A step follows its backward pass, as in a plain loop."

ENTRIES = (
    *patched(
        LIGHTNING, f"{CONNECTORS}.accelerator_connector._AcceleratorConnector", "__init__",
        "A Trainer is kept on the rank's device, and refused where it distributes by itself.",
    ),
    *patched(
        LIGHTNING, f"{CONNECTORS}.accelerator_connector", "_IS_INTERACTIVE",
        "A rank has IPython's shell, but is not a notebook: Lightning may launch its strategies.",
    ),
    *patched(
        LIGHTNING, "lightning.fabric.Fabric", "__init__",
        "A Fabric is kept on the rank's device, and refused where it distributes by itself.",
    ),
    *patched(LIGHTNING, f"{TRAINER}.call", "_call_and_handle_interrupt", ONE_DEVICE),
    *patched(LIGHTNING, f"{TRAINER}.trainer.Trainer", "_fit_impl", SAVES),
    *patched(LIGHTNING, f"{LOOPS}.fit_loop._FitLoop", "run on_advance_end", SAVES),
    *patched(LIGHTNING, f"{LOOPS}.fetchers._DataFetcher", "__next__ reset", READS_AHEAD),
    *patched(LIGHTNING, f"{LOOPS}.fetchers._PrefetchDataFetcher", "__next__", READS_AHEAD),
    *patched(
        LIGHTNING, f"{STRATEGIES}.strategy.Strategy", "setup_optimizers",
        "Optimizers that Lightning has replaced are forgotten.",
    ),
    *patched(
        LIGHTNING, f"{LOOPS}.training_epoch_loop._TrainingEpochLoop", "run",
        "A pass over a loader ends with the epoch.",
    ),
    *patched(
        LIGHTNING, "lightning.pytorch.plugins.precision.precision.Precision", "optimizer_step",
        STEP,
    ),
    *patched(
        LIGHTNING, f"{LOOPS}.evaluation_loop._EvaluationLoop", "run setup_data _evaluation_step",
        "An evaluation covers the whole data on every rank, with the notebook's random numbers.",
    ),
    *patched(
        LIGHTNING, f"{LOOPS}.prediction_loop._PredictionLoop", "run setup_data _predict_step",
        "A prediction covers the whole data on every rank, with the notebook's random numbers.",
    ),
    *patched(
        LIGHTNING, "lightning.pytorch.callbacks.TQDMProgressBar", "is_enabled",
        "The panel shows progress.",
    ),
    *patched(
        LIGHTNING, "lightning.pytorch.callbacks.RichProgressBar", "is_enabled",
        "The panel shows progress.",
    ),
    *patched(LIGHTNING, "lightning.pytorch.utilities.rank_zero.rank_zero_only", "rank", ONCE),
    *patched(
        LIGHTNING, f"{STRATEGIES}.SingleDeviceStrategy",
        "barrier broadcast reduce_boolean_decision", ONCE,
    ),
    *patched(
        LIGHTNING, f"{STRATEGIES}.strategy.Strategy", "save_checkpoint remove_checkpoint", ONCE
    ),
    *patched(
        LIGHTNING, "lightning.pytorch.callbacks.model_checkpoint.ModelCheckpoint",
        "_link_checkpoint", ONCE,
    ),
    *patched(
        LIGHTNING, RESULT, "_distributed_is_initialized",
        "Lightning does not warn that values differ between ranks: nbmgpu reduces them.",
    ),
    *patched(
        LIGHTNING, f"{CONNECTORS}.data_connector", "_InfiniteBarrier",
        "Ranks wait for rank 0 by nbmgpu's barrier, not by one of Lightning's.",
    ),
    *patched(LIGHTNING, f"{CONNECTORS}.data_connector._DataConnector", "prepare_data", ONCE),
    *patched(
        LIGHTNING, f"{LOOPS}.optimization.automatic._AutomaticOptimization", "_training_step",
        GLOBAL,
    ),
    *patched(LIGHTNING, f"{LOOPS}.optimization.manual._ManualOptimization", "run", GLOBAL),
    *patched(
        LIGHTNING, f"{LOOPS}.optimization.automatic.ClosureResult", "from_training_step_output",
        GLOBAL,
    ),
    *patched(
        LIGHTNING, f"{LOOPS}.optimization.manual.ManualResult", "from_training_step_output", GLOBAL
    ),
    *patched(LIGHTNING, "lightning.pytorch.core.module.LightningModule", "log", GLOBAL),
    *patched(LIGHTNING, f"{RESULT}._ResultMetric", "forward", GLOBAL),
    *patched(
        LIGHTNING, LOGGER, "on_batch_end update_train_epoch_metrics log_eval_end_metrics",
        "What is logged is shown as curves.",
    ),
    *private(LIGHTNING, f"{LOOPS}.loop", "_Loop", TRAINS),
    *private(LIGHTNING, f"{LOOPS}.fit_loop", "_FitLoop", TRAINS),
    *private(
        LIGHTNING, f"{LOOPS}.training_epoch_loop", "_TrainingEpochLoop",
        TRAINS,
    ),
    *private(
        LIGHTNING, f"{LOOPS}.fit_loop._FitLoop", "_skip_backward",
        "A loop without backward passes does not train.",
    ),
    *private(LIGHTNING, f"{LOOPS}.fetchers", "_DataFetcher _PrefetchDataFetcher", READS_AHEAD),
    *private(
        LIGHTNING, "lightning.pytorch.utilities.combined_loader.CombinedLoader", "_iterator",
        "A pass over a loader ends with the epoch.",
    ),
    *private(
        LIGHTNING, "lightning.pytorch.plugins.precision.precision.Precision", "_wrap_closure", STEP
    ),
    *private(
        LIGHTNING, f"{TRAINER}.trainer.Trainer", "_accelerator_connector", ONE_DEVICE,
    ),
    *private(
        LIGHTNING, f"{STRATEGIES}.Strategy",
        "_checkpoint_io _lightning_module _model _optimizers _lightning_optimizers", ONE_DEVICE,
    ),
    *private(
        LIGHTNING, f"{STRATEGIES}.ModelParallelStrategy",
        "_data_parallel_size _tensor_parallel_size", "The refusal says which mesh means the same.",
    ),
    *private(
        LIGHTNING, f"{STRATEGIES}.launchers.multiprocessing._MultiProcessingLauncher",
        "_start_method", ONE_DEVICE,
    ),
    *private(LIGHTNING, f"{LOOPS}.evaluation_loop", "_EvaluationLoop", PATCHED),
    *private(LIGHTNING, f"{LOOPS}.prediction_loop", "_PredictionLoop", PATCHED),
    *private(
        LIGHTNING, f"{CONNECTORS}.accelerator_connector", "_AcceleratorConnector", PATCHED
    ),
    *private(LIGHTNING, f"{CONNECTORS}.data_connector", "_DataConnector", PATCHED),
    *private(
        LIGHTNING, f"{CONNECTORS}.logger_connector.logger_connector", "_LoggerConnector",
        PATCHED,
    ),
    *private(
        LIGHTNING, f"{LOOPS}.optimization.automatic", "_AutomaticOptimization", PATCHED
    ),
    *private(LIGHTNING, f"{LOOPS}.optimization.manual", "_ManualOptimization", PATCHED),
    *private(LIGHTNING, RESULT, "_ResultMetric", "Lightning's own metrics are reduced already."),
    *private(
        LIGHTNING, f"{RESULT}._ResultMetric", "_forward_cache _computed",
        "A logged value is taken back before its global value is logged.",
    ),
    *private(
        LIGHTNING, "lightning.pytorch.loggers.CSVLogger", "_version",
        "Rank 0 numbers a logger's folder.",
    ),
    *private(
        LIGHTNING, "lightning.pytorch.loggers.TensorBoardLogger", "_version",
        "Rank 0 numbers a logger's folder.",
    ),
)  # fmt: skip
