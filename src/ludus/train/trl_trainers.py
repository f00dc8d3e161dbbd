"""TRL's trainers, with what Ludus adds: a check of the first batch, and whole checkpoints.

They are given tokens and make none. What they would write or send besides (a draft of a card,
word of the run to its makers) they do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ludus.errors import ConfigError, RunError
from ludus.policy.hf_logging import suppress_hf_logging
from ludus.policy.vision.model_families import supports_images
from ludus.policy.vision.processor import VisionProcessor
from ludus.policy.vision.trainer_inputs import image_inputs
from ludus.train.callbacks import RunCallback
from ludus.train.config import Lora, Method, TrainConfig
from ludus.train.data.loss_mask import LossMaskIndex, check_loss_mask
from ludus.train.data.tokenization import IGNORE_INDEX, IMAGE_COLUMNS, TOKEN_COLUMNS
from ludus.train.output.checkpoints import CheckpointState, mark_complete

REFERENCE_COLUMNS = ("ref_chosen_logps", "ref_rejected_logps")
"""What the base says of each side, where it was computed beforehand."""
_BEGIN_EVENTS, _STEP_EVENTS = ("on_train_begin",), ("on_step_end", "on_epoch_end", "on_log")


class TrainerMixin:
    """Laid over one of TRL's trainers."""

    marked: LossMaskIndex | None = None
    stepped = False
    """Whether a first step was begun: what failed before is a setting."""
    proven = False
    """Whether a first step was done: what failed after it may be anything."""
    pace: RunCallback

    def take_up(self, standing: CheckpointState) -> None:
        """Go on with the sums that stood when the checkpoint was made."""
        us = cast(Any, self)
        us._total_train_tokens = standing.tokens
        us._tr_loss += standing.loss
        us._globalstep_last_logged = standing.logged
        us._metrics["train"].update(standing.metrics)

    def training_step(self, model: Any, inputs: Mapping[str, Any], *rest: Any, **more: Any) -> Any:
        self.stepped = True
        if self.marked is not None:
            check_loss_mask(inputs, self.marked)
            self.marked = None
        made = cast(Any, super()).training_step(model, inputs, *rest, **more)
        self.proven = True
        return made

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Models that see are saved under other names than their weights have in memory, and the
        trainer passes over names that it does not know."""
        us = cast(Any, self)
        model = us.model if model is None else model
        sharded = us.is_fsdp_enabled or us.is_deepspeed_enabled
        if sharded or hasattr(model, "peft_config") or not supports_images(model.config):
            cast(Any, super())._load_from_checkpoint(resume_from_checkpoint, model)
            return
        with suppress_hf_logging():
            stored = type(model).from_pretrained(resume_from_checkpoint, dtype=model.dtype)
        model.load_state_dict(stored.state_dict())

    def evaluation_loop(self, dataloader: Any, *rest: Any, **more: Any) -> Any:
        us = cast(Any, self)
        self.pace.start_evaluation(us.num_examples(dataloader))
        try:
            return cast(Any, super()).evaluation_loop(dataloader, *rest, **more)
        finally:
            self.pace.finish_evaluation()

    def prediction_step(self, model: Any, inputs: Any, *rest: Any, **more: Any) -> Any:
        measured = cast(Any, super()).prediction_step(model, inputs, *rest, **more)
        if isinstance(inputs, Mapping) and "attention_mask" in inputs:
            tokens = int(inputs["attention_mask"].sum())
            self.pace.advance_evaluation(rows=cast(Any, self).args.eval_batch_size, tokens=tokens)
        return measured

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        us = cast(Any, self)
        loss = us.accelerator.gather(us._tr_loss.reshape(1)).mean().item()
        try:
            cast(Any, super())._save_checkpoint(model, trial)
        except Exception as error:
            # A full disk has several names: the system's, that of safetensors, and PyTorch's.
            words = " ".join(str(error).split())[:300].removesuffix(".")
            raise RunError(
                f"No checkpoint could be made of step {us.state.global_step:,}: {words}. The same "
                "command goes on from the last whole one."
            ) from error
        # Each process writes a part.
        self.pace.distributed.barrier()
        if self.pace.distributed.is_main:
            step = us.state.global_step
            metrics = {name: list(values) for name, values in us._metrics["train"].items()}
            standing = CheckpointState(
                step, us._total_train_tokens, self.pace.seconds, loss,
                us._globalstep_last_logged, metrics, self.pace.episode_bytes,
            )  # fmt: skip
            mark_complete(Path(us.args.output_dir) / f"checkpoint-{step}", standing)

    def create_model_card(self, *_: Any, **__: Any) -> None: ...

    def _send_telemetry(self) -> None: ...


class SFTMixin(TrainerMixin):
    """Laid over the trainer of rows, which would leave the column of their images out."""

    def _set_signature_columns_if_needed(self) -> None:
        cast(Any, super())._set_signature_columns_if_needed()
        us = cast(Any, self)
        us._signature_columns = [*dict.fromkeys([*us._signature_columns, *IMAGE_COLUMNS["sft"]])]


class DPOMixin(TrainerMixin):
    """Laid over the trainer of pairs, which would mark all tokens after the prompt."""

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset

    def _set_signature_columns_if_needed(self) -> None:
        columns = [name for pair in TOKEN_COLUMNS["dpo"] for name in pair]
        cast(Any, self)._signature_columns = [*columns, *IMAGE_COLUMNS["dpo"], *REFERENCE_COLUMNS]


class ImageCollator:
    """Rows for a model that sees as a batch, with the images that are in them."""

    def __init__(self, pad_token_id: int, vision: VisionProcessor) -> None:
        self.pad_token_id, self.vision = pad_token_id, vision

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        ids = [row["input_ids"] for row in rows]
        width = max(map(len, ids))
        batch = {
            "input_ids": _pad(ids, self.pad_token_id, width),
            "attention_mask": _pad([[1] * len(each) for each in ids], 0, width),
            "labels": _pad([row["labels"] for row in rows], IGNORE_INDEX, width),
        }
        (column,) = IMAGE_COLUMNS["sft"]
        urls = [url for row in rows for url in row[column]]
        return batch | image_inputs(self.vision, urls, batch["input_ids"])


class PairCollator:
    """Pairs as a batch: the better sides first, then the worse; loss where it was marked."""

    def __init__(self, pad_token_id: int, vision: VisionProcessor | None = None) -> None:
        self.pad_token_id, self.vision = pad_token_id, vision

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        import torch

        ids = [row[column] for column, _ in TOKEN_COLUMNS["dpo"] for row in rows]
        labels = [row[column] for _, column in TOKEN_COLUMNS["dpo"] for row in rows]
        width = max(map(len, ids))
        batch = {
            "input_ids": _pad(ids, self.pad_token_id, width),
            "attention_mask": _pad([[1] * len(each) for each in ids], 0, width),
            "completion_mask": (_pad(labels, IGNORE_INDEX, width) != IGNORE_INDEX).long(),
        }
        if self.vision is not None:
            urls = [url for column in IMAGE_COLUMNS["dpo"] for row in rows for url in row[column]]
            batch |= image_inputs(self.vision, urls, batch["input_ids"])
        known = [name for name in REFERENCE_COLUMNS if name in rows[0]]
        return batch | {name: torch.tensor([row[name] for row in rows]) for name in known}


def _pad(rows: Sequence[Sequence[int]], filler: int, width: int) -> Any:
    import torch

    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows])


def build_trainer(
    method: Method,
    *,
    model: Any,
    trl_config: Any,
    tokenizer: Any,
    train_dataset: Any,
    eval_dataset: Any,
    config: TrainConfig,
    callback: RunCallback,
    ref_model: Any = None,
    vision: VisionProcessor | None = None,
) -> Any:
    """A trainer that is ready to go."""
    import trl
    from transformers import PrinterCallback, TrainerCallback

    given = {
        "model": model, "args": trl_config, "processing_class": tokenizer,
        "train_dataset": train_dataset, "eval_dataset": eval_dataset,
        "callbacks": [as_trainer_callback(TrainerCallback, callback, _STEP_EVENTS)],
        "peft_config": build_peft_config(config.lora) if config.lora else None,
    }  # fmt: skip
    if vision is not None and trl_config.ddp_find_unused_parameters is None:
        # A batch without images does not use the weights that images go through.
        trl_config.ddp_find_unused_parameters = True
    if method == "sft":
        if vision is not None:
            given["data_collator"] = ImageCollator(tokenizer.pad_token_id, vision)
        kind = type("LudusSFTTrainer", (SFTMixin, trl.SFTTrainer), {})
    else:
        collator = PairCollator(tokenizer.pad_token_id, vision)
        given |= {"data_collator": collator, "ref_model": ref_model}
        kind = type("LudusDPOTrainer", (DPOMixin, trl.DPOTrainer), {})
    try:
        trainer: Any = kind(**given)
    except ValueError as error:
        said = " ".join(str(error).split())
        raise ConfigError(f"The trainer does not take these settings: {said}") from error
    trainer.remove_callback(PrinterCallback)
    # Before any other: those that report write into the folder, which may be cleared first.
    trainer.callback_handler.callbacks.insert(
        0, as_trainer_callback(TrainerCallback, callback, _BEGIN_EVENTS)
    )
    trainer.pace, callback.trainer = callback, trainer
    return trainer


def build_peft_config(lora: Lora) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.effective_alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets) if lora.targets else "all-linear",
        task_type="CAUSAL_LM",
    )


def as_trainer_callback(base: Any, callback: RunCallback, names: Sequence[str]) -> Any:
    """The trainer's callbacks hear of more than we care for: the rest is its base class's."""
    heard = {name: staticmethod(getattr(callback, name)) for name in names}
    return type("LudusCallback", (base,), heard)()
