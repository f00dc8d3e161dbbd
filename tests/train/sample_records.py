"""The fields of a training record, and final metrics."""

from __future__ import annotations

from typing import Any

from ludus.train.output.record import FinalMetrics

METRICS = FinalMetrics(
    steps=120,
    epochs=3.0,
    tokens=1_234_567,
    seconds=95.25,
    tokens_per_second=12_961.3,
    first_loss=2.4142,
    last_loss=0.3125,
    eval_loss=0.35,
    peak_memory=3 << 30,
)


def record_fields(**changes: Any) -> dict[str, Any]:
    """The fields that are known when a run starts, with some changed."""
    fields: dict[str, Any] = {
        "kind": "sft",
        "command": "ludus train sft data/wordle --model smollm2 -o models/wordle",
        "model": "smollm2",
        "base": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "license": "apache-2.0",
        "data": {"path": "data/wordle", "rows": 320, "digest": "ab" * 32, "test_rows": 40},
        "chat_format": {"name": "chatml", "origin": "ludus", "chat_template_kwargs": {}},
        "settings": {"epochs": 3.0, "lora": None, "device": None, "overrides": {}},
        "config": {"learning_rate": 2e-4, "per_device_train_batch_size": 8},
        "devices": ("cpu",),
    }
    return fields | changes
