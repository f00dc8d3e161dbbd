"""SFT and DPO: training on rows that `ludus curate` wrote, on TRL's trainers."""

from __future__ import annotations

import os
from math import ceil
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from ludus.errors import OutOfMemory
from ludus.policy.device import release_gpu_memory
from ludus.policy.engine.hf_decoder import max_context_length
from ludus.policy.hf_loading import require_transformers
from ludus.policy.model_ref import check_model
from ludus.rollout.episode_loop import SYSTEM_PROMPT
from ludus.rollout.progress import PhaseProgress
from ludus.train.acceleration import accelerate, skip_unlabelled_logits
from ludus.train.callbacks import RunCallback
from ludus.train.config import Method, TrainConfig, with_defaults
from ludus.train.context import OfflineContext, build_offline_context, training_process
from ludus.train.data.prepared_data import PreparedRows, prepare_data
from ludus.train.data.rows import check_template_fidelity
from ludus.train.data.tokenization import RowTokenizer, check_rows, tokenize_splits
from ludus.train.data.training_data import open_data
from ludus.train.output.finalize import finalize, finished_result
from ludus.train.output.record import DataRecord
from ludus.train.output.training_folder import (
    check_output_dir,
    discard_if_unstarted,
    lock_folder,
)
from ludus.train.result import NoProgress, TrainProgress, TrainResult
from ludus.train.resume import PreviousRun, find_previous_run, start_or_resume
from ludus.train.trainable_model import load_trainable_model
from ludus.train.trl_config import resolve_learning_rate, set_data_dependent_fields, split_batches
from ludus.train.trl_trainers import TRLTrainerMixin, build_trainer, run_trainer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_DEFAULT_CONFIG = TrainConfig()


def sft(
    data: str | Path,
    model: str | Path,
    out: str | Path,
    config: TrainConfig = _DEFAULT_CONFIG,
    *,
    overwrite: bool = False,
    command: str | None = None,
    progress: TrainProgress | None = None,
) -> TrainResult:
    """Fine-tune a model on the assistant messages of conversations, and write it to `out`.

    Args:
        data: A folder that `ludus curate` wrote, a `.jsonl` or `.parquet` file, or a data set on
            the Hub.
        model: A folder, a name on the Hub, or the name of a model that Ludus knows.
        out: The output folder. An interrupted run with the same config is resumed from its latest
            checkpoint; a finished one is left alone.
        overwrite: Replace a run with another config, instead of raising.
        command: The command line, for the record and the model card.
        progress: Receives the progress of training, and can stop it.
    """
    return _train("sft", data, str(model), out, config, overwrite, command, progress)


def dpo(
    data: str | Path,
    model: str | Path,
    out: str | Path,
    config: TrainConfig = _DEFAULT_CONFIG,
    *,
    overwrite: bool = False,
    command: str | None = None,
    progress: TrainProgress | None = None,
) -> TrainResult:
    """Train a model on pairs of a chosen and a rejected conversation; otherwise like `sft`."""
    return _train("dpo", data, str(model), out, config, overwrite, command, progress)


def _train(
    method: Method,
    data: str | Path,
    model: str,
    out: str | Path,
    config: TrainConfig,
    overwrite: bool,
    command: str | None,
    progress: TrainProgress | None,
) -> TrainResult:
    started_at = monotonic()
    out, progress = Path(out).expanduser(), progress or NoProgress()
    config = with_defaults(config, method)
    check_output_dir(out)
    training_data = open_data(data)
    check_model(model, device=config.device, dtype=config.precision)
    check_rows(training_data, method)
    progress.phase(PhaseProgress("Loading PyTorch and TRL", in_log=True))
    # Also packages that are needed only at the end, such as for the plot.
    extra = ("peft",) if config.lora else ()
    require_transformers("Training", "trl", "datasets", "accelerate", "matplotlib.figure", *extra)

    with training_process(out):
        context = build_offline_context(
            method, training_data, model, out, config, command=command, progress=progress,
            started_at=started_at,
        )  # fmt: skip
        with lock_folder(out, context.distributed):
            while True:
                previous = find_previous_run(context, overwrite=overwrite)
                if previous.finished:
                    return finished_result(context, previous.record)
                try:
                    with discard_if_unstarted(out, context.distributed), skip_unlabelled_logits():
                        return _run(context, previous, overwrite=overwrite)
                except OutOfMemory as error:
                    rows = context.trl_config.per_device_train_batch_size
                    if context.distributed.world_size > 1 or not split_batches(context.trl_config):
                        raise
                    overwrite = overwrite and not error.after_start
                # Not in the handler: the traceback's frames keep the model alive.
                release_gpu_memory()
                fewer = context.trl_config.per_device_train_batch_size
                progress.say(
                    f"The GPU ran out of memory with {rows} rows at once. Going on with {fewer} at "
                    "once; a training step still has as many rows"
                )


def _run(context: OfflineContext, previous: PreviousRun, *, overwrite: bool) -> TrainResult:
    with context.distributed.raise_on_all_ranks():
        model = _load_model_and_prepare_data(context)

    def write_record() -> None:
        data, counts = context.data, PreparedRows(context.tokens_dir).counts()
        data_record = DataRecord(
            path=data.name, rows=counts.rows, digest=data.digest,
            test_rows=counts.test_rows or None, dropped=counts.dropped,
            truncated=counts.truncated, environments=counts.environments,
            task=data.run_setting("task") or {},
            system_prompt=data.run_setting("system_prompt", SYSTEM_PROMPT) or "",
        )  # fmt: skip
        start_or_resume(context, {"data": data_record}, previous.state, overwrite=overwrite)

    callback = RunCallback(
        context.out, context.progress, context.distributed, resume_state=previous.state,
        checkpoint_every=context.config.checkpoint_every, write_record=write_record,
        deadline=context.deadline,
    )  # fmt: skip
    with context.distributed.raise_on_all_ranks():
        trainer = _build_trainer(context, model, callback)
    run_trainer(trainer, previous.checkpoint)
    return finalize(context, trainer, callback)


def _load_model_and_prepare_data(context: OfflineContext) -> PreTrainedModel:
    """Load the model. The main process tokenizes the rows before, and writes them for all ranks.

    Tokenization comes first, because it finds bad rows; the maximum length, and so truncation,
    depends on the model.
    """
    data, vision, name = context.data, context.vision, context.model_ref.name
    if context.distributed.is_main:
        phase = PhaseProgress(f"Tokenizing {data.name}", unit="rows", in_log=True)
        context.progress.phase(phase)
        template = context.chat_format.template
        row_tokenizer = RowTokenizer(context.tokenizer, template, context.method, vision)
        check_template_fidelity(data.train, row_tokenizer)
        tokenized = tokenize_splits(data, row_tokenizer, context.tokens_dir, phase)
    context.progress.phase(PhaseProgress(f"Loading {name}", in_log=True))
    model = load_trainable_model(context.model_ref)
    if context.distributed.is_main:
        prepared = prepare_data(
            tokenized, data, context.method, context.config,
            context_length=max_context_length(model), folder=context.tokens_dir,
            image_token=vision.image_token_id if vision else None,
        )  # fmt: skip
        if prepared.truncated:
            context.progress.say(
                f"{prepared.truncated:,} of {prepared.rows:,} rows are longer than "
                f"{prepared.max_length:,} tokens and truncated (`max_length`)"
            )
    return model


def _build_trainer(
    context: OfflineContext, model: PreTrainedModel, callback: RunCallback
) -> TRLTrainerMixin:
    method, config, trl_config = context.method, context.config, context.trl_config
    rows = PreparedRows(context.tokens_dir)
    train_rows, test_rows = rows.train(), rows.test()
    steps = int(trl_config.max_steps)
    if steps <= 0:
        batch_size = trl_config.per_device_train_batch_size * context.distributed.world_size
        batches = ceil(len(train_rows) / batch_size)
        steps_per_epoch = ceil(batches / trl_config.gradient_accumulation_steps)
        steps = ceil(steps_per_epoch * trl_config.num_train_epochs)
    set_data_dependent_fields(
        trl_config, config, max_length=rows.counts().max_length,
        has_test_rows=test_rows is not None, steps=steps,
        learning_rate=resolve_learning_rate(config, method, model.num_parameters()),
    )  # fmt: skip
    ref_model = None
    if method == "dpo" and config.lora is None:
        precomputed = trl_config.precompute_ref_log_probs
        if precomputed:
            phase = f"Computing the reference log-probabilities of {len(train_rows):,} pairs"
            context.progress.phase(PhaseProgress(phase, in_log=True))
        # Under FSDP, TRL would load it by name, which it may not have.
        if not precomputed or trl_config.fsdp or os.environ.get("ACCELERATE_USE_FSDP") == "true":
            ref_model = load_trainable_model(context.model_ref)
    trainer = build_trainer(
        context, callback, model=model, train_dataset=train_rows, eval_dataset=test_rows,
        ref_model=ref_model,
    )  # fmt: skip
    if method == "sft" and context.vision is None:
        accelerate(trainer, config, context.distributed, context.progress.say)
    elif config.compile:
        context.progress.say("`compile` has no effect for models that take images.")
    return trainer
