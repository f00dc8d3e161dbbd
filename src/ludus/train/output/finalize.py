"""The end of a run: save the model, and write its final metrics, model card and plot.

The model is a folder that `from_pretrained` loads. Weights are trained in float32 and saved in the
dtype of the base model. The tokenizer is saved with the chat template used in training, and the
generation config with the tokens that end a turn.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.data.training_log import (
    RECORD_FILE,
    first_and_last_means,
    log_points,
    metric_values,
    read_log,
)
from ludus.errors import RunError
from ludus.policy.chat.chat_format import set_chat_format
from ludus.policy.model_ref import ModelRef
from ludus.rollout.progress import PhaseProgress
from ludus.train.callbacks import OUT_OF_TIME, RunCallback
from ludus.train.config import BaseTrainConfig
from ludus.train.context import TrainContext
from ludus.train.output import record, training_folder
from ludus.train.output.model_card import build_model_card
from ludus.train.output.record import FinalMetrics, TrainingRecord
from ludus.train.output.training_folder import ADAPTER_DIR, CARD_FILE, PLOT_FILES
from ludus.train.result import TrainResult
from ludus.train.trainable_model import load_trainable_model, published_dtype
from ludus.train.trl_config import build_peft_config

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from ludus.train.trl_trainers import TRLTrainerMixin

_DRAFT_DIR = ".model.draft"


def finalize(context: TrainContext, trainer: TRLTrainerMixin, callback: RunCallback) -> TrainResult:
    """Write the model and its metrics, also if the run was stopped and can be resumed.

    A run that is out of time counts as finished: its metrics are final.
    """
    out, stopped = context.out, None
    resumed_from = callback.resume_state.step if callback.resume_state else None
    if not is_finished(trainer, callback):
        stopped = callback.stop_reason
    is_complete = stopped in (None, OUT_OF_TIME)
    if not trainer.state.global_step:
        metrics = _collect_metrics(context, trainer, callback, stopped)
        return _build_result(out, metrics, resumed_from, stopped)
    context.progress.phase(PhaseProgress("Saving the model"))
    with context.distributed.raise_on_all_ranks():
        _export_model(context, trainer)
    metrics = _collect_metrics(context, trainer, callback, stopped)
    if context.distributed.is_main:
        if context.vision is not None:
            context.vision.image_processor.save_pretrained(str(out))
        title = f"{context.method.upper()} of {context.model_ref.name} on {context.subject}"
        context.plot(list(read_log(out)), out / PLOT_FILES[context.method], title)
        started = record.read_record(out)
        if started is None:
            raise RunError(f"{out / RECORD_FILE} was removed during the run.")
        results = {"metrics": metrics, "comparison": callback.comparison}
        card = build_model_card(started.model_copy(update=results), name=str(out))
        (out / CARD_FILE).write_text(card, encoding="utf-8")
        # The metrics mark the run as finished, so the files that resuming needs go only after that.
        record.finish_record(out, metrics if is_complete else None, callback.comparison)
        if is_complete:
            keep = context.extensible or stopped is not None
            training_folder.remove_temporary_files(out, keep_last_checkpoint=keep)
    context.distributed.barrier()
    return _build_result(out, metrics, resumed_from, None if is_complete else stopped)


def is_finished(trainer: TRLTrainerMixin, callback: RunCallback) -> bool:
    """Whether the last step was made, or the run ended early without a learning signal."""
    return not callback.stop_reason or trainer.state.global_step >= trainer.state.max_steps


def finished_result(context: TrainContext, previous: TrainingRecord | None) -> TrainResult:
    """The result of a run finalized earlier; removes files that only training needs."""
    assert previous is not None and previous.metrics is not None
    if context.distributed.is_main:
        training_folder.remove_temporary_files(context.out, keep_last_checkpoint=context.extensible)
    return _build_result(context.out, previous.metrics, None)


def _collect_metrics(
    context: TrainContext, trainer: TRLTrainerMixin, callback: RunCallback, stopped: str | None
) -> FinalMetrics:
    import torch

    device, log = context.trl_config.device, list(read_log(context.out))
    losses, eval_losses = log_points(log), log_points(log, "eval_loss")
    first_reward, last_reward = first_and_last_means(metric_values(log, "reward")) or (None, None)
    tokens, seconds = int(trainer._total_train_tokens), callback.seconds
    return FinalMetrics(
        steps=trainer.state.global_step,
        stopped=stopped,
        epochs=trainer.state.epoch,
        tokens=tokens,
        seconds=round(seconds, 3),
        tokens_per_second=round(tokens / seconds, 1) if seconds else None,
        first_loss=losses[0][1] if losses else None,
        last_loss=losses[-1][1] if losses else None,
        eval_loss=eval_losses[-1][1] if eval_losses else None,
        peak_memory=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        first_reward=first_reward,
        last_reward=last_reward,
        eval_reward=callback.comparison.saved if callback.comparison else None,
        kept_step=callback.kept_step,
        buckets=callback.buckets,
    )


def _build_result(
    out: Path, metrics: FinalMetrics, resumed_from: int | None, stopped: str | None = None
) -> TrainResult:
    return TrainResult(
        out, metrics.steps, metrics.last_loss, metrics.seconds or 0.0, metrics.tokens or 0,
        resumed_from, stopped,
    )  # fmt: skip


def _export_model(context: TrainContext, trainer: TRLTrainerMixin) -> None:
    """Save the model and its tokenizer. All ranks must call it; the first one writes."""
    if trainer.is_sharded:
        # Gathering is a collective operation: every rank holds a part of the weights.
        state = trainer.accelerator.get_state_dict(
            trainer.deepspeed if trainer.is_deepspeed_enabled else trainer.model
        )
    if not context.distributed.is_main:
        return
    if trainer.is_sharded:
        model = rebuild_model(state, context.config, context.model_ref)
    else:
        model = trainer.accelerator.unwrap_model(trainer.model)
    # On a full disk, no half of a model stays.
    draft = context.out / _DRAFT_DIR
    shutil.rmtree(draft, ignore_errors=True)
    try:
        _save_model(context, trainer, model, draft)
        set_chat_format(context.tokenizer, context.chat_format)
        context.tokenizer.save_pretrained(draft)
        # Give the weights, which safetensors creates for the owner alone, the mode of other files.
        mode = (draft / "tokenizer_config.json").stat().st_mode
        for weights in draft.rglob("*.safetensors"):
            weights.chmod(mode)
        for path in draft.iterdir():
            if path.is_dir():
                shutil.rmtree(context.out / path.name, ignore_errors=True)
            path.replace(context.out / path.name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def rebuild_model(
    state: Mapping[str, Tensor], config: BaseTrainConfig, model_ref: ModelRef
) -> PreTrainedModel:
    """Rebuild the unsharded model, with its adapter if there is one, from gathered weights."""
    model = load_trainable_model(model_ref)
    if config.lora is not None:
        from peft import get_peft_model

        model = get_peft_model(model, build_peft_config(config.lora))
    keys = model.load_state_dict(state, strict=False)
    own = model.state_dict()
    loaded = {own[name].data_ptr() for name in own if name in state}
    # Tied weights have two names, and the state dict may hold only one of them.
    missing = [name for name in keys.missing_keys if own[name].data_ptr() not in loaded]
    if wrong := [*missing, *keys.unexpected_keys]:
        raise RunError(f"The gathered weights do not fit the model: {wrong[0]}.")
    return model


def _save_model(
    context: TrainContext, trainer: TRLTrainerMixin, model: PreTrainedModel, folder: Path
) -> None:
    """Save the adapter or the model, or both; raises for weights that are not finite."""
    import torch

    lora = context.config.lora
    if lora is not None:
        trainer.check_weights(model)
        for peft_config in model.peft_config.values():
            peft_config.base_model_name_or_path = context.model_ref.portable_name
        adapter_dir = folder / ADAPTER_DIR if lora.merge_adapter else folder
        model.save_pretrained(adapter_dir)
        # PEFT writes an empty model card.
        (adapter_dir / "README.md").unlink(missing_ok=True)
        if not lora.merge_adapter:
            return
        model = model.merge_and_unload()
    # Generation stops at the tokens that end a turn in training.
    eos = model.generation_config.eos_token_id
    before = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    tokens = list(dict.fromkeys([*sorted(context.chat_format.stop_token_ids), *before]))
    model.generation_config.eos_token_id = tokens[0] if len(tokens) == 1 else tokens
    model = model.to(getattr(torch, published_dtype(context.model_ref)))
    # A finite float32 number may be infinite in float16.
    trainer.check_weights(model)
    model.save_pretrained(folder)
