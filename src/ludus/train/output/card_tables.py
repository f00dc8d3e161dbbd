"""The tables of a trained model's card: its figures, and how it was trained.

Pure functions of the record of the run. A row that nothing is known of is left out.
"""

from __future__ import annotations

import json
from typing import Any

from ludus.data.markdown import code_block, inline_code, markdown_table, to_single_line
from ludus.data.tool_schema import JsonObject
from ludus.train.output.record_schema import DataRecord, FinalMetrics, TrainingRecord

_CONFIG_ROWS = (
    ("per_device_train_batch_size", "Rows per batch and process"),
    ("gradient_accumulation_steps", "Batches per step"),
    ("learning_rate", "Learning rate"),
    ("lr_scheduler_type", "Schedule"),
    ("warmup_steps", "Warm-up"),
    ("optim", "Optimizer"),
    ("weight_decay", "Weight decay"),
    ("max_length", "Tokens per row, at the most"),
    ("packing", "Packing"),
    ("beta", "Beta"),
    ("gradient_checkpointing", "Gradient checkpointing"),
)
"""Fields of TRL's config that decide most, and what they are called here."""


def metrics_table(metrics: FinalMetrics | None) -> str:
    """What came out; nothing while it is not known."""
    if metrics is None:
        return ""
    seconds, speed = metrics.seconds, metrics.tokens_per_second
    memory = metrics.peak_memory
    rows = {
        "Steps": _format_number(metrics.steps),
        "Epochs": _format_number(metrics.epochs),
        "Tokens": _format_number(metrics.tokens),
        "Reward, first and last": _format_range(metrics.first_reward, metrics.last_reward),
        "Reward on held-out tasks": _format_number(metrics.eval_reward),
        "Loss, first and last": _format_range(metrics.first_loss, metrics.last_loss),
        "Loss on the test split": _format_number(metrics.eval_loss),
        "Seconds": _format_number(seconds and round(seconds, 1)),
        "Tokens per second": _format_number(speed and round(speed)),
        "Peak memory": f"{memory / 2**30:.1f} GiB" if memory else "",
    }
    return _titled_table("## Figures", rows)


def provenance_table(training: TrainingRecord) -> str:
    """What it was made from, and with which settings."""
    rows = {
        "Model": inline_code(training.model),
        **(_data_rows(training.data) if training.data is not None else {}),
        **(_environment_rows(training) if training.environment is not None else {}),
        "Adapter": _describe_adapter(training.settings.get("lora")),
        **{words: _format_value(training.config.get(field)) for field, words in _CONFIG_ROWS},
        "Seed": _format_number(training.seeds.get("seed")),
        "Went on after step": ", ".join(map(_format_number, training.resumed_from)),
        "Extended from a schedule of": ", ".join(
            f"{steps:,} steps" for steps in training.extended_from
        ),
        "Devices": _count_devices(training.devices),
    }
    command = code_block(training.command, "bash") if training.command else ""
    whole = "The whole configuration is in `training.json`, every logged step in `log.jsonl`."
    return _titled_table(f"## How it was trained\n\n{command}".rstrip(), rows) + f"\n\n{whole}"


def _data_rows(data: DataRecord) -> dict[str, str]:
    return {
        "Data": f"{inline_code(data.path)}, {data.rows:,} rows, SHA-256 {inline_code(data.digest[:16])}",
        "Environments": ", ".join(
            f"{inline_code(name)} ({rows:,} rows)" for name, rows in data.environments.items()
        ),
        "Left out": f"{data.left_out:,} rows" if data.left_out else "",
        "Cut at the end": f"{data.cut:,} rows" if data.cut else "",
        "Test split": f"{data.test_rows:,} rows" if data.test_rows else "",
    }


def _environment_rows(training: TrainingRecord) -> dict[str, str]:
    assert training.environment is not None
    settings = training.settings
    return {
        "Environment": inline_code(training.environment.spec),
        "Task": inline_code(json.dumps(settings["task"])) if settings.get("task") else "",
        "Tasks per step": _format_number(settings.get("groups")),
        "Attempts at each": _format_number(settings.get("group_size")),
        "Tokens per episode, at the most": _format_number(settings.get("max_episode_tokens")),
        "Tokens per reply, at the most": _format_number(settings.get("max_tokens")),
        "Temperature": _format_number(settings.get("temperature")),
        "Groups with equal rewards": str(settings.get("equal", "")),
        "Other rewards": ", ".join(inline_code(name) for name in settings.get("rewards") or ()),
    }


def _describe_adapter(lora: JsonObject | None) -> str:
    if lora is None:
        return ""
    layers = ", ".join(lora.get("targets") or ()) or "all linear layers"
    alpha = lora.get("alpha") or 2 * lora["rank"]
    merged = "merged" if lora.get("merge", True) else "not merged"
    return f"LoRA of rank {lora['rank']}, alpha {alpha}, on {to_single_line(layers)}, {merged}"


def _titled_table(head: str, rows: dict[str, str]) -> str:
    return f"{head}\n\n" + markdown_table(
        ("", ""), [(name, fact) for name, fact in rows.items() if fact]
    )


def _format_range(first: float | None, last: float | None) -> str:
    return (
        f"{_format_number(first)} to {_format_number(last)}"
        if first is not None and last is not None
        else ""
    )


def _count_devices(devices: tuple[str, ...]) -> str:
    kinds = dict.fromkeys(devices)
    return ", ".join(f"{devices.count(kind)} x {to_single_line(kind)}" for kind in kinds)


def _format_value(value: Any) -> str:
    if value is None or value is False:
        return ""
    return "yes" if value is True else inline_code(value)


def _format_number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.4g}" if isinstance(value, float) and value < 1000 else f"{value:,.0f}"
