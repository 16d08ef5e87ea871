"""What a rank replaces in the libraries of Hugging Face, and their private names that are used."""

from __future__ import annotations

from .build import added, patched, private
from .libraries import ACCELERATE, DATASETS, HUB, SAFETENSORS, TOKENIZERS, TRANSFORMERS

STATE = "accelerate.state"
TRAINER = "transformers.trainer.Trainer"
ONE_PROCESS = "accelerate sees one process, so that nbmgpu distributes its loops."
ONCE = "A file is written once, by rank 0, and the other ranks wait for it."
CACHED = "Rank 0 downloads and caches; the other ranks find the result."
RANDOM = "A checkpoint has the random state of the notebook, not that of one rank."
COUNTS = "What a Trainer counts is summed over ranks."
CURVES = "What a Trainer logs is shown in the panel."
ONE_LOOP = "Ranks share the batches of a Trainer's step; one Trainer's own methods are wrapped."

ENTRIES = (
    *patched(ACCELERATE, f"{STATE}.PartialState", "__init__ _prepare_backend", ONE_PROCESS),
    *(
        entry
        for kind in ("PartialState", "AcceleratorState", "GradientState")
        for names in (
            added(
                ACCELERATE, f"{STATE}.{kind}", "__setstate__ __getstate__",
                "A state that comes from the notebook joins the process-wide state of the rank.",
            ),
            private(ACCELERATE, f"{STATE}.{kind}", "_shared_state", "It is process-wide."),
        )
        for entry in names
    ),
    *private(ACCELERATE, f"{STATE}.PartialState", "_cpu", "A rank's state is made like it."),
    *private(
        ACCELERATE, f"{STATE}.AcceleratorState", "_mixed_precision",
        "A rank's state is made like it.",
    ),
    *patched(
        ACCELERATE, "accelerate.Accelerator", "__init__",
        "An Accelerator that chooses a distribution of its own is refused.",
    ),
    *patched(
        ACCELERATE, "accelerate.Accelerator", "backward",
        "The gradient is divided by the accumulated steps, not the loss, whose graph is read.",
    ),
    *patched(
        ACCELERATE, "accelerate.Accelerator", "gather_for_metrics reduce",
        "A value that covers one rank's shard of a batch is reported.",
    ),
    *patched(ACCELERATE, "accelerate.Accelerator", "save_state wait_for_everyone", ONCE),
    *(
        entry
        for kind in ("DataLoaderShard", "DataLoaderDispatcher", "SkipDataLoader")
        for entry in patched(
            ACCELERATE, f"accelerate.data_loader.{kind}", "__iter__",
            "It reads a batch ahead; the batch's step begins when it is handed out.",
        )
    ),
    *patched(
        TRANSFORMERS, "transformers.training_args", "_is_torch_distributed_initialized",
        "It would warn that a process group exists and is not used.",
        without="transformers may warn that the process group is not used",
    ),
    *patched(
        TRANSFORMERS, "transformers.training_args.TrainingArguments", "n_gpu",
        "The batch size of a notebook with several GPUs is that of all ranks.",
    ),
    *patched(
        TRANSFORMERS, TRAINER, "__init__ train evaluate predict",
        "Training arguments that distribute by themselves are refused.",
    ),
    *patched(
        TRANSFORMERS, TRAINER, "_inner_training_loop evaluation_loop",
        "nbmgpu follows a Trainer's loops.",
    ),
    *patched(
        TRANSFORMERS, TRAINER, "_get_grad_norm", "The norm of the gradients is shown as a curve.",
        without="a Trainer's gradient norm is not shown at every step",
    ),
    *patched(
        TRANSFORMERS, TRAINER, "prediction_loop", "Older Trainers evaluate by it.",
        without="evaluations with use_legacy_prediction_loop decide by each rank's metrics",
        gone="5.0",
    ),
    *patched(TRANSFORMERS, TRAINER, "store_flos", COUNTS),
    *patched(
        TRANSFORMERS, TRAINER, "_track_num_input_tokens", COUNTS,
        without="num_input_tokens_seen counts one rank's tokens", since="5.0",
    ),
    *patched(TRANSFORMERS, TRAINER, "_save_rng_state _load_rng_state", RANDOM),
    *patched(TRANSFORMERS, TRAINER, "_save_checkpoint save_model", ONCE),
    *patched(
        TRANSFORMERS, TRAINER,
        "_maybe_log_save_evaluate", "It saves when --checkpoint-every is due.",
        without="--checkpoint-every writes no checkpoint of a Trainer",
    ),
    *patched(
        TRANSFORMERS, TRAINER,
        "get_train_dataloader get_batch_samples training_step floating_point_ops", ONE_LOOP,
    ),
    *private(
        TRANSFORMERS, "transformers.configuration_utils.PretrainedConfig", "_attn_implementation",
        "Under tp, attention that returns its weights computes all heads on every rank.",
    ),
    *private(TRANSFORMERS, TRAINER, "_train_batch_size _get_num_items_in_batch", ONE_LOOP),
    *private(
        TRANSFORMERS, TRAINER,
        "_tr_loss _total_loss_scalar _globalstep_last_logged _initial_global_step",
        "A resumed training logs the losses of the unbroken one.",
    ),
    *private(TRANSFORMERS, "transformers.training_args.TrainingArguments", "_n_gpu", ONE_LOOP),
    *patched(
        TRANSFORMERS, "transformers.trainer_callback.CallbackHandler",
        "on_log on_prediction_step on_evaluate on_predict", CURVES,
    ),
    *(
        entry
        for kind in (
            "transformers.trainer_callback.ProgressCallback",
            "transformers.utils.notebook.NotebookProgressCallback",
        )
        for entry in patched(
            TRANSFORMERS, kind,
            "on_train_begin on_step_end on_prediction_step on_evaluate on_predict on_log "
            "on_train_end",
            "The panel shows a Trainer's progress and tables.",
        )
    ),
    *patched(
        TRANSFORMERS, "transformers.modeling_utils.PreTrainedModel", "from_pretrained",
        'A strategy splits the layers of a model, and not tp_plan="auto".',
    ),
    *patched(
        TRANSFORMERS, "transformers.modeling_utils.PreTrainedModel", "save_pretrained",
        "Every rank takes part, as a sharded model is gathered; rank 0 writes and uploads.",
    ),
    *added(
        TRANSFORMERS, "transformers.modeling_utils.PreTrainedModel", "should_save_on_this_rank",
        "transformers 5 asks torch for the rank; nbmgpu writes files once anyway.",
    ),
    *private(
        TRANSFORMERS, "transformers.modeling_utils.PreTrainedModel", "_no_split_modules",
        "The blocks of a model become units of FSDP2.",
    ),
    *patched(
        TRANSFORMERS, "transformers.utils.output_capturing._CanRecordRegistry", "get",
        "A model from the notebook returns its hidden states and attentions.",
        without="hidden states and attentions of models from the notebook",
    ),
    *private(
        TRANSFORMERS, "transformers.utils.output_capturing", "_active_collector",
        "Hooks of a model from the notebook read this process's variable.",
    ),
    *private(
        TRANSFORMERS, "transformers.modeling_utils.PreTrainedModel", "_can_record_outputs",
        "What a model from the notebook can return besides its output.",
    ),
    *patched(DATASETS, "datasets", "load_dataset load_dataset_builder", CACHED),
    *(
        entry
        for kind in ("datasets.Dataset", "datasets.DatasetDict")
        for entry in (
            *patched(
                DATASETS, kind,
                "map filter shuffle sort flatten_indices cast cast_column class_encode_column "
                "from_csv from_json from_parquet from_text",
                CACHED,
            ),
            *patched(DATASETS, kind, "save_to_disk push_to_hub", ONCE),
        )
    ),
    *patched(
        DATASETS, "datasets.Dataset", "select train_test_split from_generator from_sql", CACHED
    ),
    *patched(DATASETS, "datasets.Dataset", "to_csv to_json to_parquet to_sql", ONCE),
    *patched(HUB, "huggingface_hub", "hf_hub_download snapshot_download", CACHED),
    *patched(SAFETENSORS, "safetensors.torch", "serialize_file", ONCE),
    *patched(TOKENIZERS, "tokenizers.Tokenizer", "save", ONCE),
)  # fmt: skip
