"""Batches of TRL's trainers for a tiny random model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

IdsAndMask = tuple[list[int], list[int]]
"""Token ids, and 1 for tokens with loss."""


def sft_batch(
    rows: list[dict[str, Any]],
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    max_length: int | None = None,
) -> list[IdsAndMask]:
    """The rows of an SFTTrainer's batch."""
    options: dict[str, Any] = {"assistant_only_loss": True, "max_length": max_length}
    trainer = SFTTrainer(
        model=_model(tokenizer),
        args=SFTConfig(**_training_args(folder, rows), **options),
        train_dataset=_dataset(rows),
        processing_class=tokenizer,
    )
    batch = next(iter(trainer.get_train_dataloader()))
    tensors = zip(batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True)
    return sorted(_ids_and_mask(ids, labels != -100, real) for ids, labels, real in tensors)


def dpo_batch(
    rows: list[dict[str, Any]], tokenizer: PreTrainedTokenizerFast, folder: Path
) -> list[IdsAndMask]:
    """Both sides of each row in a DPOTrainer's batch."""
    trainer = DPOTrainer(
        model=_model(tokenizer),
        ref_model=_model(tokenizer),
        args=DPOConfig(**_training_args(folder, rows), max_length=None),
        train_dataset=_dataset(rows),
        processing_class=tokenizer,
    )
    batch = next(iter(trainer.get_train_dataloader()))
    tensors = zip(
        batch["input_ids"], batch["completion_mask"], batch["attention_mask"], strict=True
    )
    return sorted(_ids_and_mask(ids, mask, real) for ids, mask, real in tensors)


def _ids_and_mask(ids: Any, mask: Any, real: Any) -> IdsAndMask:
    kept = real.bool()
    return ids[kept].tolist(), mask[kept].long().tolist()


def _training_args(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
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


def _dataset(rows: list[dict[str, Any]]) -> datasets.Dataset:
    datasets.disable_progress_bars()
    return datasets.Dataset.from_list(rows, on_mixed_types="use_json")


def _model(tokenizer: PreTrainedTokenizerFast) -> Any:
    model_class: Any = LlamaForCausalLM  # transformers has no types for it.
    return model_class(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=4096,
        )
    )
