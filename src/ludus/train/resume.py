"""Resuming a run: what an earlier call left in the output folder, and training from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.data.training_log import truncate_log
from ludus.errors import ConfigError, LudusError, RunError
from ludus.policy.engine.scoped_settings import without_cudnn_sdpa
from ludus.train.context import TrainContext
from ludus.train.output import checkpoints, record, training_folder
from ludus.train.output.checkpoints import CheckpointState
from ludus.train.output.record_schema import TrainingRecord


@dataclass(frozen=True, slots=True)
class PreviousRun:
    """The run that this call continues; without a record there is none."""

    record: TrainingRecord | None = None
    checkpoint: Path | None = None
    """Its latest complete checkpoint."""
    state: CheckpointState | None = None
    """The counters of that checkpoint."""
    extends: bool = False
    """Whether more steps are requested than it was started with."""

    @property
    def finished(self) -> bool:
        """Whether all its steps are done, and no more are requested."""
        return self.record is not None and self.record.figures is not None and not self.extends


def find_previous_run(context: TrainContext, *, overwrite: bool) -> PreviousRun:
    """Look into the output folder. A run with another config raises, unless `overwrite`."""
    out, progress = context.out, context.progress
    previous = record.read_record(out)
    if previous is None or overwrite or not record.has_progress(out):
        return PreviousRun()
    trained_on = context.data_identity(previous) if previous.kind == context.method else {}
    record.check_same_run(out, context.record_fields(trained_on))
    config = context.config.as_json()
    extends = record.previous_steps(previous, context.method, config) is not None
    checkpoint = checkpoints.latest_checkpoint(out)
    state = checkpoints.read_state(checkpoint) if checkpoint is not None else None
    if extends and state is not None:
        progress.say(
            f"Extending {out} from step {state.step:,} to {config['steps']:,}; the learning rate "
            f"now follows the schedule of {config['steps']:,} steps"
        )
    elif extends and previous.figures is not None:
        raise RunError(
            f"{out} has finished its {previous.figures.steps:,} steps, and its last checkpoint, "
            "which holds the optimizer state, is gone. To train its model further with a new "
            f"optimizer, set `model` to {out} and use another `out`."
        )
    elif previous.figures is not None:
        progress.say(f"{out} is trained already, with the same settings. Nothing is left to do.")
    return PreviousRun(previous, checkpoint, state, extends)


def start_record(
    context: TrainContext,
    trained_on: Mapping[str, Any],
    state: CheckpointState | None,
    *,
    overwrite: bool,
) -> None:
    """Write `training.json` and rewind the log to the checkpoint that the run resumes from.

    Called when the trainer has accepted its config: until then an existing model must stay.
    """
    if overwrite:
        training_folder.remove_run(context.out)
    checkpoints.remove_incomplete(context.out)
    step = state.step if state is not None else None
    # The record comes first: a folder with a log and no record would be taken for somebody else's.
    record.create_record(context.out, context.record_fields(trained_on), resumed_from=step)
    # Without a checkpoint everything is done again, including what is logged before the first step.
    truncate_log(context.out, -1 if step is None else step)


def run_trainer(trainer: Any, checkpoint: Path | None) -> None:
    """Train, and turn what goes wrong into an error of one line."""
    import torch

    try:
        # cuDNN builds a plan per shape, and hardly two batches have the same length.
        with without_cudnn_sdpa():
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except LudusError:
        raise
    except torch.OutOfMemoryError as error:
        raise RunError(
            "The GPU ran out of memory. Use a smaller `batch_size`, fewer tokens (`max_length` or "
            "`max_episode_tokens`), `gradient_checkpointing`, or `lora`; with the same settings it "
            "fails again."
        ) from error
    except Exception as error:
        # Some fields are rejected only when they are first used.
        rejected = isinstance(error, ValueError) and not trainer.first_step_done
        if trainer.first_step_started and not rejected:
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"Training cannot begin with these settings: {reason}") from error
