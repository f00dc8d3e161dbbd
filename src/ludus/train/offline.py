"""A training run from beginning to end, whichever the method: begun, gone on with, or done already.

Reads top to bottom. What each part does is the business of the module that it is in.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from ludus.data import training_log
from ludus.policy.hf_logging import require
from ludus.policy.load import load_model
from ludus.policy.preflight import check_model
from ludus.rollout.progress import PhaseProgress
from ludus.train.callbacks import RunCallback
from ludus.train.config import Method, TrainConfig, resolve_learning_rate, with_defaults
from ludus.train.context import OfflineContext, build_context
from ludus.train.data import prepared_data
from ludus.train.data.loading import open_data
from ludus.train.data.loss_mask import LossMaskIndex
from ludus.train.data.prepared_data import PreparedData
from ludus.train.data.tokenization import RowTokenizer
from ludus.train.distributed import Distributed
from ludus.train.output import checkpoints, record, training_folder
from ludus.train.output.finalize import finalize
from ludus.train.output.record_schema import DataRecord, TrainingRecord
from ludus.train.output.result import TrainResult
from ludus.train.overrides import check_override_keys
from ludus.train.process_env import training_process
from ludus.train.progress import NoProgress, TrainProgress
from ludus.train.resume import run_or_resume, run_trainer
from ludus.train.speed.acceleration import accelerate, skip_unlabelled_logits
from ludus.train.trl_config import set_data_dependent_fields
from ludus.train.trl_trainers import build_trainer


def train(
    method: Method,
    data: str | Path,
    model: str,
    out: str | Path,
    config: TrainConfig,
    *,
    overwrite: bool,
    command: str | None,
    progress: TrainProgress | None,
) -> TrainResult:
    """Train, or go on where a run with the same settings stood."""
    out, progress = Path(out).expanduser(), progress or NoProgress()
    config = with_defaults(config, method)
    training_folder.check_output_dir(out)
    found = open_data(data)
    check_model(model, device=config.device, dtype=config.precision)
    check_override_keys(method, config.overrides)
    progress.phase(PhaseProgress("Loading PyTorch and TRL", in_log=True))
    _require_packages(config)
    with training_process(out), ExitStack() as stack:
        job = build_context(method, found, model, out, config, command, progress)
        with job.distributed.raise_on_all_ranks():
            # One process holds it for all that train together.
            if job.distributed.is_main:
                stack.enter_context(training_folder.lock_folder(out))
        return run_or_resume(job, partial(_run, job, overwrite=overwrite), overwrite=overwrite)


def _require_packages(settings: TrainConfig) -> None:
    """All that is needed up to the picture at the end: it is too late to miss it then."""
    extra = ("peft",) if settings.lora else ()
    require("Training", "trl", "datasets", "accelerate", "filelock", "matplotlib.figure", *extra)


def _run(job: OfflineContext, there: TrainingRecord | None, *, overwrite: bool) -> TrainResult:
    checkpoint = checkpoints.latest_checkpoint(job.out) if there is not None else None
    standing = checkpoints.read_state(checkpoint) if checkpoint is not None else None
    with job.distributed.raise_on_all_ranks():
        model = _load_model_and_data(job)
    fed = prepared_data.load_prepared_data(job.tokens_dir)

    def begin() -> None:
        if overwrite:
            training_folder.remove_run(job.out)
        _write_record(job, fed, standing)

    with skip_unlabelled_logits():
        with job.distributed.raise_on_all_ranks():
            trainer, pace = _build_trainer(job, model, fed, standing, begin)
        run_trainer(trainer, checkpoint)
    return finalize(job, trainer, pace)


def _load_model_and_data(job: OfflineContext) -> Any:
    """The model; the first process lays out for all what it is fed."""
    draft = _tokenize_data(job) if job.distributed.is_main else None
    job.progress.phase(PhaseProgress(f"Loading {job.source.name}", in_log=True))
    model = load_model(job.source.name, device="cpu", dtype="float32", allow_vision=True)
    if draft is not None:
        fed = prepared_data.prepare(
            draft, job.data, job.method, job.config, job.source.name,
            context=_context_length(model), folder=job.tokens_dir, image_token=job.vision.image_token_id if job.vision else None,
        )  # fmt: skip
        if fed.cut:
            job.progress.say(
                f"{fed.cut:,} of {fed.rows:,} rows are longer than {fed.max_length:,} tokens; what "
                "lies behind is not learned (--max-length)"
            )
    return model


def _tokenize_data(job: OfflineContext) -> prepared_data.TokenizedSplits:
    progress = PhaseProgress(f"Tokenizing {job.data.name}", unit="rows", in_log=True)
    job.progress.phase(progress)
    maker = RowTokenizer(job.tokenizer, job.dialect.template, job.method, job.vision)
    return prepared_data.tokenize_splits(job.data, maker, job.tokens_dir, progress)


def _context_length(model: Any) -> int | None:
    """How many tokens the model can read, if it says so."""
    found = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else None


def _build_trainer(
    job: OfflineContext, model: Any, fed: PreparedData, standing: checkpoints.CheckpointState | None,
    begin: Callable[[], None],
) -> tuple[Any, RunCallback]:  # fmt: skip
    settings, config = job.config, job.trl_config
    rows, test = (
        prepared_data.load_train_rows(job.tokens_dir),
        prepared_data.load_test_rows(job.tokens_dir),
    )
    rate = resolve_learning_rate(settings, job.method, model.num_parameters())
    steps = _count_steps(config, len(rows), job.distributed)
    set_data_dependent_fields(
        config, settings, learning_rate=rate, max_length=fed.max_length, steps=steps,
        has_test_rows=test is not None,
    )  # fmt: skip
    pace = RunCallback(
        job.out, job.progress, job.distributed, every=settings.checkpoint_every, standing=standing,
        begin=begin,
    )  # fmt: skip
    if job.method == "dpo" and config.precompute_ref_log_probs:
        phase = f"Computing the reference log-probabilities of {len(rows):,} pairs"
        job.progress.phase(PhaseProgress(phase, in_log=True))
    trainer = build_trainer(
        job.method, model=model, trl_config=config, tokenizer=job.tokenizer, train_dataset=rows, eval_dataset=test,
        config=settings, callback=pace, ref_model=_load_reference_model(job), vision=job.vision,
    )  # fmt: skip
    trainer.marked = LossMaskIndex.build(
        prepared_data.load_unpacked_rows(job.tokens_dir), job.method
    )
    if job.method == "sft" and job.vision is None:
        accelerate(trainer, settings, job.distributed, job.progress.say)
    elif settings.compile:
        job.progress.say("--compile does nothing here: it is for models that read only text.")
    return trainer, pace


def _load_reference_model(job: OfflineContext) -> Any:
    """The base beside the model, where it is asked anew for every batch.

    Under FSDP beforehand too: there TRL would look for it by a name that it may not have.
    """
    if job.method == "sft" or job.config.lora:
        return None
    sharded = job.trl_config.fsdp or os.environ.get("ACCELERATE_USE_FSDP", "false") == "true"
    if job.trl_config.precompute_ref_log_probs and not sharded:
        return None
    return load_model(job.source.name, device="cpu", dtype="float32", allow_vision=True)


def _count_steps(config: Any, rows: int, world: Distributed) -> int:
    if (asked := int(config.max_steps)) > 0:
        return asked
    batches = ceil(rows / (config.per_device_train_batch_size * world.world_size))
    steps: float = ceil(batches / config.gradient_accumulation_steps) * config.num_train_epochs
    return ceil(steps)


def _write_record(
    job: OfflineContext, fed: PreparedData, standing: checkpoints.CheckpointState | None
) -> None:
    checkpoints.remove_incomplete(job.out)
    step = standing.step if standing else 0
    data = DataRecord(
        path=job.data.name, rows=fed.rows, digest=job.data.digest,
        test_rows=fed.test_rows or None, left_out=fed.left_out, cut=fed.cut,
        environments=fed.environments, task=job.data.task,
    )  # fmt: skip
    # The record first: a log without one would be a stranger's.
    record.create_record(
        job.out, job.record_fields({"data": data}), resumed_from=step if standing else None
    )
    training_log.truncate_log(job.out, step)
