"""How a run ends: the model is saved, and its figures, its card and its picture are written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ludus.data.tools import JsonObject
from ludus.errors import RunError
from ludus.rollout.progress import PhaseProgress
from ludus.train import folder, record
from ludus.train.card import CARD_FILE, card_of, picture_of
from ludus.train.job import Job
from ludus.train.outcome import Outcome
from ludus.train.pace import Pace
from ludus.train.saving import save, saved_dtype
from ludus.train.training import Figures

FEW = 5
"""Logged steps over which the first and the last reward are means."""


def ended(job: Job, trainer: Any, pace: Pace) -> Outcome:
    resumed = pace.standing.step if pace.standing else None
    if not is_finished(trainer, pace):
        figures = _figures(job, trainer, pace)
        return outcome_of(job.out, figures, resumed, pace.stopped)
    job.watch.phase(PhaseProgress("Saving the model"))
    dtype = saved_dtype(job.source)
    save(trainer, job.tokenizer, job.dialect, job.config, job.source, dtype=dtype, out=job.out)
    figures = _figures(job, trainer, pace)
    if job.world.main:
        job.finish()
        _finish(job, figures)
    job.world.wait()
    return outcome_of(job.out, figures, resumed)


def is_finished(trainer: Any, pace: Pace) -> bool:
    """Whether it made its last step, or ended early because nothing was left to learn."""
    return not pace.stopped or trainer.state.global_step >= trainer.state.max_steps


def _finish(job: Job, figures: Figures) -> None:
    title = f"{job.method.upper()} of {job.source.name} on {job.subject}"
    job.draw(list(record.lines(job.out)), job.out / picture_of(job.method), title)
    done = record.read(job.out)
    if done is None:
        raise RunError(f"{job.out / record.RECORD} was removed while the run was under way.")
    example = job.example()
    known = {"figures": figures, "example": example}
    card = card_of(done.model_copy(update=known), name=str(job.out))
    (job.out / CARD_FILE).write_text(card, encoding="utf-8")
    # With its figures a run is whole: what only a run under way needs goes after that.
    record.finish(job.out, figures, example)
    folder.tidy(job.out, keep_last=job.extensible)


def _figures(job: Job, trainer: Any, pace: Pace) -> Figures:
    logged = list(record.lines(job.out))
    losses, test = record.losses(logged), record.losses(logged, "eval_loss")
    tokens, seconds = int(trainer._total_train_tokens), pace.seconds
    return Figures(
        steps=trainer.state.global_step,
        epochs=trainer.state.epoch,
        tokens=tokens,
        seconds=round(seconds, 3),
        tokens_per_second=round(tokens / seconds, 1) if seconds else None,
        first_loss=losses[0][1] if losses else None,
        last_loss=losses[-1][1] if losses else None,
        eval_loss=test[-1][1] if test else None,
        peak_memory=_peak_memory(job.config.device),
        **_rewards(logged),
    )


def _rewards(logged: Sequence[JsonObject]) -> dict[str, float]:
    """Of a run by trial: how it began and how it ended, over a few steps each."""
    rewards = [reward for _, reward in record.losses(logged, "reward")]
    held_out = record.losses(logged, "eval_reward")
    found = {"eval_reward": held_out[-1][1]} if held_out else {}
    if rewards:
        found |= {"first_reward": fmean(rewards[:FEW]), "last_reward": fmean(rewards[-FEW:])}
    return found


def _peak_memory(device: Any) -> int | None:
    if device.type != "cuda":
        return None
    import torch

    return int(torch.cuda.max_memory_allocated(device))


def outcome_of(
    out: Path, figures: Figures, resumed: int | None, stopped: str | None = None
) -> Outcome:
    return Outcome(
        out, figures.steps, figures.last_loss, figures.seconds or 0.0, figures.tokens or 0,
        resumed, stopped,
    )  # fmt: skip
