"""A run that is begun, gone on with, or found done already; whatever the method.

What there is to do is the business of whoever calls; here is only whether, and from where.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ludus.errors import ConfigError, LudusError, RunError
from ludus.policy.meanwhile import without_cudnn_sdpa
from ludus.train import checkpoints, folder, record
from ludus.train.ending import outcome_of
from ludus.train.job import Job
from ludus.train.outcome import Outcome
from ludus.train.training import Training

Run = Callable[[Training | None], Outcome]
"""Does the work; it is given the record of a run to go on with, if there is one."""


def carry_out(job: Job, run: Run, *, overwrite: bool) -> Outcome:
    """Begin, go on, or find that nothing is left to do."""
    there, out = _taken_up(job, overwrite=overwrite), job.out
    extends = there is not None and _is_extended(job, there)
    if there is not None and there.figures is not None and not extends:
        job.watch.say(f"{out} is trained already, with the same settings. Nothing is left to do.")
        if job.world.main:
            folder.tidy(out, keep_last=job.extensible)
        return outcome_of(out, there.figures, None)
    if there is not None and extends:
        _announce_extension(job, there)
    try:
        return run(there)
    except LudusError:
        if job.world.main:
            folder.abandon(out)
        raise


def _taken_up(job: Job, *, overwrite: bool) -> Training | None:
    """What is in the folder already, if it is this very run."""
    there = record.read(job.out)
    if there is None or overwrite or not record.is_begun(job.out):
        return None
    known = job.known(there) if there.kind == job.method else {}
    record.refuse_another(job.out, job.about(known))
    return there


def _is_extended(job: Job, there: Training) -> bool:
    return record.fewer_steps(there, job.method, job.config.as_json()) is not None


def _announce_extension(job: Job, there: Training) -> None:
    """Say what becomes of a run that is asked for more steps; refuse it without a checkpoint."""
    steps, checkpoint = job.config.as_json()["steps"], checkpoints.newest(job.out)
    standing = checkpoints.standing_of(checkpoint) if checkpoint is not None else None
    if standing is not None:
        job.watch.say(
            f"Extending {job.out} from step {standing.step:,} to {steps:,}: the learning rate "
            f"follows the schedule of {steps:,} steps from here on"
        )
    elif there.figures is not None:
        raise RunError(
            f"{job.out} has made its {there.figures.steps:,} steps, and its last checkpoint, which "
            "has the optimizer's state, is not there any more. To train its model further with a "
            f"new optimizer, use --model {job.out} and another --output-dir."
        )


def trained(trainer: Any, checkpoint: Path | None) -> None:
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
