"""A run that is begun, gone on with, or found done already; whatever the method.

What there is to do is the business of whoever calls; here is only whether, and from where.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ludus.errors import ConfigError, LudusError, RunError
from ludus.policy.engine.scoped_settings import without_cudnn_sdpa
from ludus.train.context import TrainContext
from ludus.train.output import checkpoints, record, training_folder
from ludus.train.output.finalize import build_result
from ludus.train.output.record_schema import TrainingRecord
from ludus.train.output.result import TrainResult

RunFunction = Callable[[TrainingRecord | None], TrainResult]
"""Does the work; it is given the record of a run to go on with, if there is one."""


def run_or_resume(context: TrainContext, run: RunFunction, *, overwrite: bool) -> TrainResult:
    """Begin, go on, or find that nothing is left to do."""
    there, out = _existing_record(context, overwrite=overwrite), context.out
    extends = there is not None and _asks_for_more_steps(context, there)
    if there is not None and there.figures is not None and not extends:
        context.progress.say(
            f"{out} is trained already, with the same settings. Nothing is left to do."
        )
        if context.distributed.is_main:
            training_folder.remove_temporary_files(out, keep_last_checkpoint=context.extensible)
        return build_result(out, there.figures, None)
    if there is not None and extends:
        _announce_extension(context, there)
    try:
        return run(there)
    except LudusError:
        if context.distributed.is_main:
            training_folder.discard_unstarted_run(out)
        raise


def _existing_record(job: TrainContext, *, overwrite: bool) -> TrainingRecord | None:
    """What is in the folder already, if it is this very run."""
    there = record.read_record(job.out)
    if there is None or overwrite or not record.has_progress(job.out):
        return None
    known = job.data_identity(there) if there.kind == job.method else {}
    record.check_same_run(job.out, job.record_fields(known))
    return there


def _asks_for_more_steps(job: TrainContext, there: TrainingRecord) -> bool:
    return record.previous_steps(there, job.method, job.config.as_json()) is not None


def _announce_extension(job: TrainContext, there: TrainingRecord) -> None:
    """Say what becomes of a run that is asked for more steps; refuse it without a checkpoint."""
    steps, checkpoint = job.config.as_json()["steps"], checkpoints.latest_checkpoint(job.out)
    standing = checkpoints.read_state(checkpoint) if checkpoint is not None else None
    if standing is not None:
        job.progress.say(
            f"Extending {job.out} from step {standing.step:,} to {steps:,}: the learning rate "
            f"follows the schedule of {steps:,} steps from here on"
        )
    elif there.figures is not None:
        raise RunError(
            f"{job.out} has made its {there.figures.steps:,} steps, and its last checkpoint, which "
            "has the optimizer's state, is not there any more. To train its model further with a "
            f"new optimizer, use --model {job.out} and another --output-dir."
        )


def run_trainer(trainer: Any, checkpoint: Path | None) -> None:
    """Let it train, and say in a line what stops it."""
    import torch

    try:
        # Hardly a batch is as long as another.
        with without_cudnn_sdpa():
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except LudusError:
        raise
    except torch.OutOfMemoryError as error:
        raise RunError(
            "The memory of the GPU does not suffice. Use a smaller --batch-size, fewer tokens "
            "(--max-length, or --max-episode-tokens), --gradient-checkpointing, or --lora; with "
            "the same settings it fails again."
        ) from error
    except Exception as error:
        # Some settings are refused only when they are used for the first time.
        refused = isinstance(error, ValueError) and not trainer.proven
        if trainer.stepped and not refused:
            raise
        said = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"Training cannot begin with these settings: {said}") from error
