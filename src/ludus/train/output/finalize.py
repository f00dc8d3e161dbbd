"""How a run ends: the model is saved, and its figures, its card and its picture are written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ludus.data import training_log
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError
from ludus.rollout.progress import PhaseProgress
from ludus.train.callbacks import RunCallback
from ludus.train.context import TrainContext
from ludus.train.output import record, training_folder
from ludus.train.output.export import export_dtype, export_model
from ludus.train.output.model_card import CARD_FILE, build_model_card, plot_file
from ludus.train.output.record_schema import FinalMetrics
from ludus.train.output.result import TrainResult

REWARD_WINDOW_STEPS = 5
"""Logged steps over which the first and the last reward are means."""


def finalize(context: TrainContext, trainer: Any, callback: RunCallback) -> TrainResult:
    resumed = callback.resume_state.step if callback.resume_state else None
    if not is_finished(trainer, callback):
        figures = _collect_metrics(context, trainer, callback)
        return build_result(context.out, figures, resumed, callback.stopped)
    context.progress.phase(PhaseProgress("Saving the model"))
    dtype = export_dtype(context.source)
    export_model(
        trainer,
        context.tokenizer,
        context.dialect,
        context.config,
        context.source,
        dtype=dtype,
        out=context.out,
    )
    figures = _collect_metrics(context, trainer, callback)
    if context.distributed.is_main:
        context.save_processor()
        _write_results(context, figures)
    context.distributed.barrier()
    return build_result(context.out, figures, resumed)


def is_finished(trainer: Any, callback: RunCallback) -> bool:
    """Whether it made its last step, or ended early because nothing was left to learn."""
    return not callback.stopped or trainer.state.global_step >= trainer.state.max_steps


def _write_results(job: TrainContext, figures: FinalMetrics) -> None:
    title = f"{job.method.upper()} of {job.source.name} on {job.subject}"
    job.plot(list(training_log.read_log(job.out)), job.out / plot_file(job.method), title)
    done = record.read_record(job.out)
    if done is None:
        raise RunError(
            f"{job.out / training_log.RECORD_FILE} was removed while the run was under way."
        )
    example = job.example_task()
    known = {"figures": figures, "example": example}
    card = build_model_card(done.model_copy(update=known), name=str(job.out))
    (job.out / CARD_FILE).write_text(card, encoding="utf-8")
    # With its figures a run is whole: what only a run under way needs goes after that.
    record.finish_record(job.out, figures, example)
    training_folder.remove_temporary_files(job.out, keep_last_checkpoint=job.extensible)


def _collect_metrics(job: TrainContext, trainer: Any, pace: RunCallback) -> FinalMetrics:
    logged = list(training_log.read_log(job.out))
    losses, test = (
        training_log.logged_values(logged),
        training_log.logged_values(logged, "eval_loss"),
    )
    tokens, seconds = int(trainer._total_train_tokens), pace.seconds
    return FinalMetrics(
        steps=trainer.state.global_step,
        epochs=trainer.state.epoch,
        tokens=tokens,
        seconds=round(seconds, 3),
        tokens_per_second=round(tokens / seconds, 1) if seconds else None,
        first_loss=losses[0][1] if losses else None,
        last_loss=losses[-1][1] if losses else None,
        eval_loss=test[-1][1] if test else None,
        peak_memory=_peak_memory(job.trl_config.device),
        **_reward_metrics(logged),
    )


def _reward_metrics(logged: Sequence[JsonObject]) -> dict[str, float]:
    """Of a run by trial: how it began and how it ended, over a few steps each."""
    rewards = [reward for _, reward in training_log.logged_values(logged, "reward")]
    held_out = training_log.logged_values(logged, "eval_reward")
    found = {"eval_reward": held_out[-1][1]} if held_out else {}
    if rewards:
        found |= {
            "first_reward": fmean(rewards[:REWARD_WINDOW_STEPS]),
            "last_reward": fmean(rewards[-REWARD_WINDOW_STEPS:]),
        }
    return found


def _peak_memory(device: Any) -> int | None:
    if device.type != "cuda":
        return None
    import torch

    return int(torch.cuda.max_memory_allocated(device))


def build_result(
    out: Path, metrics: FinalMetrics, resumed_from: int | None, stopped: str | None = None
) -> TrainResult:
    return TrainResult(
        out, metrics.steps, metrics.last_loss, metrics.seconds or 0.0, metrics.tokens or 0,
        resumed_from, stopped,
    )  # fmt: skip
