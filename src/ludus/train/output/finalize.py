"""The end of a run: save the model, and write its final metrics, model card and plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ludus.data.training_log import (
    RECORD_FILE,
    first_and_last_means,
    log_points,
    metric_values,
    read_log,
)
from ludus.errors import RunError
from ludus.rollout.progress import PhaseProgress
from ludus.train.callbacks import RunCallback
from ludus.train.context import TrainContext
from ludus.train.output import record, training_folder
from ludus.train.output.export import export_model
from ludus.train.output.model_card import build_model_card
from ludus.train.output.record_schema import FinalMetrics, TrainingRecord
from ludus.train.output.result import TrainResult
from ludus.train.output.training_folder import CARD_FILE, plot_file


def finalize(context: TrainContext, trainer: Any, callback: RunCallback) -> TrainResult:
    """Write the model and its metrics; of a run that was stopped early, only return the metrics."""
    out = context.out
    resumed_from = callback.resume_state.step if callback.resume_state else None
    if not is_finished(trainer, callback):
        metrics = _collect_metrics(context, trainer, callback)
        return _build_result(out, metrics, resumed_from, callback.stop_reason)
    context.progress.phase(PhaseProgress("Saving the model"))
    with context.distributed.raise_on_all_ranks():
        export_model(context, trainer)
    metrics = _collect_metrics(context, trainer, callback)
    if context.distributed.is_main:
        if context.vision is not None:
            context.vision.save(out)
        title = f"{context.method.upper()} of {context.model_ref.name} on {context.subject}"
        context.plot(list(read_log(out)), out / plot_file(context.method), title)
        started = record.read_record(out)
        if started is None:
            raise RunError(f"{out / RECORD_FILE} was removed during the run.")
        example = context.example_task()
        finished = started.model_copy(update={"metrics": metrics, "example": example})
        (out / CARD_FILE).write_text(build_model_card(finished, name=str(out)), encoding="utf-8")
        # The metrics mark the run as finished, so the files that resuming needs go only after that.
        record.finish_record(out, metrics, example)
        training_folder.remove_temporary_files(out, keep_last_checkpoint=context.extensible)
    context.distributed.barrier()
    return _build_result(out, metrics, resumed_from)


def is_finished(trainer: Any, callback: RunCallback) -> bool:
    """Whether the last step was made, or the run ended early because it had nothing to learn."""
    return not callback.stop_reason or trainer.state.global_step >= trainer.state.max_steps


def finished_result(context: TrainContext, previous: TrainingRecord | None) -> TrainResult:
    """The result of a run that was finished before; removes what only a running one needs."""
    assert previous is not None and previous.metrics is not None
    if context.distributed.is_main:
        training_folder.remove_temporary_files(context.out, keep_last_checkpoint=context.extensible)
    return _build_result(context.out, previous.metrics, None)


def _collect_metrics(context: TrainContext, trainer: Any, callback: RunCallback) -> FinalMetrics:
    import torch

    device, log = context.trl_config.device, list(read_log(context.out))
    losses, eval_losses = log_points(log), log_points(log, "eval_loss")
    reward_change = first_and_last_means(metric_values(log, "reward"))
    eval_rewards = log_points(log, "eval_reward")
    tokens, seconds = int(trainer._total_train_tokens), callback.seconds
    return FinalMetrics(
        steps=trainer.state.global_step,
        epochs=trainer.state.epoch,
        tokens=tokens,
        seconds=round(seconds, 3),
        tokens_per_second=round(tokens / seconds, 1) if seconds else None,
        first_loss=losses[0][1] if losses else None,
        last_loss=losses[-1][1] if losses else None,
        eval_loss=eval_losses[-1][1] if eval_losses else None,
        peak_memory=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        first_reward=reward_change[0] if reward_change else None,
        last_reward=reward_change[1] if reward_change else None,
        eval_reward=_kept_reward(eval_rewards, callback.kept_step),
        kept_step=callback.kept_step,
        buckets=callback.buckets,
    )


def _kept_reward(rewards: Sequence[tuple[int, float]], kept_step: int | None) -> float | None:
    """The held-out reward of the saved model: that of a step, or the last one."""
    if not rewards:
        return None
    return dict(rewards).get(kept_step, rewards[-1][1]) if kept_step is not None else rewards[-1][1]


def _build_result(
    out: Path, metrics: FinalMetrics, resumed_from: int | None, stopped: str | None = None
) -> TrainResult:
    return TrainResult(
        out, metrics.steps, metrics.last_loss, metrics.seconds or 0.0, metrics.tokens or 0,
        resumed_from, stopped,
    )  # fmt: skip
