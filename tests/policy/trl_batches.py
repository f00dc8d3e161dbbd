"""What TRL's own trainers train on: a tiny random model, a real trainer, its own batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

Trained = tuple[list[int], list[int]]
"""Ids, and 1 where the token bears the loss."""


def sft(
    rows: list[dict[str, Any]],
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    max_length: int | None = None,
) -> list[Trained]:
    """Each row of the one batch that a real SFTTrainer makes of all rows."""
    how: dict[str, Any] = {"assistant_only_loss": True, "max_length": max_length}
    trainer = SFTTrainer(
        model=_model(tokenizer),
        args=SFTConfig(**_settings(folder, rows), **how),
        train_dataset=_data(rows),
        processing_class=tokenizer,
    )
    batch = next(iter(trainer.get_train_dataloader()))
    lines = zip(batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True)
    return sorted(_line(ids, labels != -100, real) for ids, labels, real in lines)


def dpo(
    rows: list[dict[str, Any]], tokenizer: PreTrainedTokenizerFast, folder: Path
) -> list[Trained]:
    """Each side of each row, chosen and rejected, in the batch of a real DPOTrainer."""
    trainer = DPOTrainer(
        model=_model(tokenizer),
        ref_model=_model(tokenizer),
        args=DPOConfig(**_settings(folder, rows), max_length=None),
        train_dataset=_data(rows),
        processing_class=tokenizer,
    )
    batch = next(iter(trainer.get_train_dataloader()))
    lines = zip(batch["input_ids"], batch["completion_mask"], batch["attention_mask"], strict=True)
    return sorted(_line(ids, mask, real) for ids, mask, real in lines)


def _line(ids: Any, mask: Any, real: Any) -> Trained:
    kept = real.bool()
    return ids[kept].tolist(), mask[kept].long().tolist()


def _settings(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": len(rows),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


def _data(rows: list[dict[str, Any]]) -> datasets.Dataset:
    datasets.disable_progress_bars()
    return datasets.Dataset.from_list(rows, on_mixed_types="use_json")


def _model(tokenizer: PreTrainedTokenizerFast) -> Any:
    make: Any = LlamaForCausalLM  # Not typed by its makers.
    return make(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=4096,
        )
    )
