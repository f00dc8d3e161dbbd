"""TRL's trainers with what Ludus adds: checkpoints that are marked complete and hold all counters.

The trainers get tokenized rows. TRL's model card draft and telemetry are turned off.
"""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.errors import ConfigError, LudusError, OutOfMemory, RunError, TrainingDiverged
from ludus.policy.engine.scoped_settings import without_cudnn_sdpa
from ludus.policy.hf_loading import suppress_hf_logging
from ludus.policy.load import find_nonfinite_weights
from ludus.policy.vision.processor import supports_images
from ludus.rollout.progress import PhaseProgress
from ludus.train.callbacks import RunCallback, add_callback
from ludus.train.data.batches import (
    REFERENCE_COLUMNS,
    Batch,
    ImageCollator,
    PairCollator,
)
from ludus.train.data.rows import IMAGE_COLUMNS, TOKEN_COLUMNS
from ludus.train.output.checkpoints import (
    CheckpointState,
    checkpoint_folder,
    latest_checkpoint,
    mark_complete,
    remove_unusable,
)
from ludus.train.output.training_folder import is_full_disk
from ludus.train.trl_config import build_peft_config

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor, nn
    from torch.utils.data import DataLoader
    from transformers import PreTrainedModel, Trainer, TrainingArguments
    from transformers.trainer_utils import EvalLoopOutput

    from ludus.train.context import OfflineContext
else:
    Trainer = object

_EVENTS = ("on_step_end", "on_epoch_end", "on_log")


class TRLTrainerMixin(Trainer):  # type: ignore[misc]  # transformers is not typed.
    """Mixed into one of TRL's trainers."""

    callback: RunCallback
    first_step_started = False
    """An error before that is due to the config."""
    first_step_done = False
    """A `ValueError` before that is due to the config."""

    @property
    def is_sharded(self) -> bool:
        """Whether FSDP or DeepSpeed divides the weights among processes."""
        return bool(self.is_fsdp_enabled or self.is_deepspeed_enabled)

    def restore_state(self, state: CheckpointState) -> None:
        """Continue the sums and counters that transformers does not keep in a checkpoint."""
        self._total_train_tokens = state.tokens
        self._tr_loss += state.loss
        self._globalstep_last_logged = state.logged
        self._metrics["train"].update(state.metrics)

    def training_step(self, model: nn.Module, inputs: Batch, *rest: Any, **more: Any) -> Tensor:
        self.first_step_started = True
        loss = super().training_step(model, inputs, *rest, **more)
        self.first_step_done = True
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: float | None = None) -> float | None:
        """Stop if the loss or the gradient is not finite, before it reaches the weights."""
        norm: float | None = super()._get_grad_norm(model, grad_norm)
        # In fp16 a step whose gradient overflows is skipped, and the next ones are scaled less.
        checked = 0.0 if norm is None or self.args.fp16 else norm
        codes = [int(not isfinite(float(value))) for value in (self._tr_loss, checked)]
        bad_loss, bad_gradient = self.callback.distributed.all_reduce_max(codes)
        if bad_loss or bad_gradient:
            what = "the loss" if bad_loss else "the norm of the gradient"
            raise self.diverged(self.state.global_step + 1, f"{what} is not finite")
        return norm

    def check_weights(self, model: nn.Module) -> None:
        """Raise before weights that are not finite are saved."""
        if (name := find_nonfinite_weights(model)) is not None:
            dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
            raise self.diverged(self.state.global_step, f"{name} is not finite in {dtype}")

    def diverged(self, step: int, symptom: str) -> TrainingDiverged:
        kept = latest_checkpoint(self.callback.out)
        return TrainingDiverged(
            f"Training diverged at step {step:,}: {symptom}. Lower `learning_rate` "
            f"({self.args.learning_rate:g}) and start again with `overwrite`."
            + (f" The latest checkpoint is kept: {kept}." if kept else "")
        )

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: PreTrainedModel | None = None
    ) -> None:
        """Load vision models by `from_pretrained`.

        Their weights are saved under other names than they have in memory, and the trainer would
        silently skip unknown names.
        """
        model = self.model if model is None else model
        if self.is_sharded or hasattr(model, "peft_config") or not supports_images(model.config):
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        with suppress_hf_logging():
            stored = type(model).from_pretrained(resume_from_checkpoint, dtype=model.dtype)
        model.load_state_dict(stored.state_dict())

    def evaluation_loop(self, dataloader: DataLoader, *rest: Any, **more: Any) -> EvalLoopOutput:
        rows = self.num_examples(dataloader)
        phase = f"Measuring the test loss on {rows:,} rows"
        self.callback.progress.phase(PhaseProgress(phase, in_log=True))
        measured = super().evaluation_loop(dataloader, *rest, **more)
        self.callback.progress.phase(PhaseProgress("Training"))
        # The mean over all ranks.
        if not isfinite(measured.metrics.get("eval_loss", 0.0)):
            raise self.diverged(self.state.global_step, "the test loss is not finite")
        return measured

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        callback, step = self.callback, int(self.state.global_step)
        loss = self.accelerator.gather(self._tr_loss.reshape(1)).mean().item()
        if not self.is_sharded:
            self.check_weights(model)
        try:
            super()._save_checkpoint(model, trial)
        except Exception as error:
            # A full disk is an OSError, a SafetensorError or a RuntimeError of PyTorch.
            if callback.distributed.is_main:
                remove_unusable(callback.out, step)
            reason = " ".join(str(error).split())[:300].removesuffix(".")
            raise RunError(
                f"The checkpoint of step {step:,} could not be saved: {reason}. The same command "
                "resumes from the last complete one."
            ) from error
        # Every rank writes a part of it; the mark must come after all of them.
        callback.distributed.barrier()
        if callback.distributed.is_main:
            metrics = {name: list(values) for name, values in self._metrics["train"].items()}
            state = CheckpointState(
                step, self._total_train_tokens, callback.seconds, loss,
                self._globalstep_last_logged, metrics, **callback.checkpoint_fields(),
            )  # fmt: skip
            mark_complete(checkpoint_folder(callback.out, step), state)

    def create_model_card(self, *_: Any, **__: Any) -> None: ...

    def _send_telemetry(self) -> None: ...


class SFTMixin(TRLTrainerMixin):
    """Mixed into `SFTTrainer`, which would drop the column of images."""

    _signature_columns: list[str]

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        columns = [*self._signature_columns, *IMAGE_COLUMNS["sft"]]
        self._signature_columns = [*dict.fromkeys(columns)]


class DPOMixin(TRLTrainerMixin):
    """Mixed into `DPOTrainer`, which would compute the loss on all tokens after the prompt."""

    _signature_columns: list[str]

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        return dataset

    def _set_signature_columns_if_needed(self) -> None:
        columns = [name for pair in TOKEN_COLUMNS["dpo"] for name in pair]
        self._signature_columns = [*columns, *IMAGE_COLUMNS["dpo"], *REFERENCE_COLUMNS]


def build_trainer(
    context: OfflineContext,
    callback: RunCallback,
    *,
    model: PreTrainedModel,
    train_dataset: Dataset,
    eval_dataset: Dataset | None,
    ref_model: PreTrainedModel | None = None,
) -> TRLTrainerMixin:
    """Build TRL's `SFTTrainer` or `DPOTrainer` on tokenized rows."""
    import torch
    import trl

    lora, vision, trl_config = context.config.lora, context.vision, context.trl_config
    arguments: dict[str, Any] = {
        "model": model, "args": trl_config, "processing_class": context.tokenizer,
        "train_dataset": train_dataset, "eval_dataset": eval_dataset,
        "peft_config": build_peft_config(lora) if lora else None,
    }  # fmt: skip
    if vision is not None and trl_config.ddp_find_unused_parameters is None:
        # A batch without images does not use the weights of the vision tower.
        trl_config.ddp_find_unused_parameters = True
    if context.method == "sft":
        if vision is not None:
            arguments["data_collator"] = ImageCollator(context.tokenizer.pad_token_id, vision)
        trainer_class = type("LudusSFTTrainer", (SFTMixin, trl.SFTTrainer), {})
    else:
        collator = PairCollator(context.tokenizer.pad_token_id, vision)
        arguments |= {"data_collator": collator, "ref_model": ref_model}
        trainer_class = type("LudusDPOTrainer", (DPOMixin, trl.DPOTrainer), {})
    try:
        trainer: TRLTrainerMixin = trainer_class(**arguments)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"TRL's trainer does not accept these settings: {reason}") from error
    except torch.OutOfMemoryError as error:  # Of the reference log-probabilities.
        raise _out_of_memory(trl_config) from error
    add_callback(trainer, callback, _EVENTS)
    return trainer


def run_trainer(trainer: TRLTrainerMixin, checkpoint: Path | None) -> None:
    """Run one of TRL's trainers, and raise its failures as one-line errors."""
    import torch

    try:
        # cuDNN builds a plan per shape, and hardly two batches have the same length.
        with without_cudnn_sdpa():
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except LudusError:
        raise
    except torch.OutOfMemoryError as error:
        raise _out_of_memory(trainer.args, after_start=trainer.first_step_started) from error
    except Exception as error:
        # Some fields are rejected only when they are first used.
        rejected = isinstance(error, ValueError) and not trainer.first_step_done
        if is_full_disk(error) or (trainer.first_step_started and not rejected):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"Training cannot begin with these settings: {reason}") from error


def _out_of_memory(trl_config: TrainingArguments, *, after_start: bool = False) -> OutOfMemory:
    smaller = "a smaller `batch_size`, " * (trl_config.per_device_train_batch_size > 1)
    error = OutOfMemory(
        f"The GPU ran out of memory. Use {smaller}fewer tokens (`max_length` or "
        "`max_episode_tokens`), `gradient_checkpointing`, or `lora`; with the same settings it "
        "fails again."
    )
    error.after_start = after_start
    return error
