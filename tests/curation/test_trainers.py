"""TRL's trainers accept curated rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
from tiny_tokenizers import of_family
from transformers import LlamaConfig, LlamaForCausalLM
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from curation.attempts import (
    GUESS,
    attempt,
    call,
    curate_episodes,
    model,
    system,
    tool_result,
    user,
)

TOKENIZER = of_family("qwen3")


def _model() -> Any:
    make: Any = LlamaForCausalLM  # Not typed by its makers.
    return make(
        LlamaConfig(
            vocab_size=len(TOKENIZER),
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=2048,
        )
    )


def _settings(folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder / "trained"),
        "per_device_train_batch_size": 2,
        "max_steps": 1,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "max_length": 1024,
    }


def _loaded(folder: Path, monkeypatch: pytest.MonkeyPatch, **how: Any) -> Any:
    """Rows of two tools and several turns, as `load_dataset` gives them."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
    datasets.disable_progress_bars()
    prompt = (system("Play well."), user("Guess."))
    episodes = [
        attempt(
            f"{task}{reward}",
            reward,
            task=task,
            tools=(GUESS,),
            messages=(
                *prompt,
                model("", call("guess", {"word": f"owl {reward}"}), reasoning="Birds."),
                tool_result("no"),
                model(f"It is {task}."),
            ),
        )
        for task in "stuv"
        for reward in (0.0, 1.0)
    ]
    curate_episodes(folder, *episodes, **how)
    return datasets.load_dataset(str(folder / "out"))["train"]


def test_sft_takes_a_step_on_the_rows_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = SFTTrainer(
        model=_model(),
        args=SFTConfig(**_settings(tmp_path), assistant_only_loss=True),
        train_dataset=_loaded(tmp_path, monkeypatch),
        processing_class=TOKENIZER,
    )
    assert 0 < trainer.train().training_loss < 20


def test_dpo_takes_a_step_on_the_pairs_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = DPOTrainer(
        model=_model(),
        ref_model=_model(),
        args=DPOConfig(**_settings(tmp_path)),
        train_dataset=_loaded(tmp_path, monkeypatch, to="dpo"),
        processing_class=TOKENIZER,
    )
    assert 0 < trainer.train().training_loss < 5
