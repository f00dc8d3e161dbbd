"""The tables of a model card, built from the record of the run, without empty rows."""

from __future__ import annotations

import json

from ludus.data.hub import code_block, inline_code, markdown_table, to_single_line
from ludus.train.output.record_schema import DataRecord, FinalMetrics, TrainingRecord

_CONFIG_ROWS = (
    ("per_device_train_batch_size", "Rows per batch and process"),
    ("gradient_accumulation_steps", "Batches per step"),
    ("learning_rate", "Learning rate"),
    ("lr_scheduler_type", "Schedule"),
    ("warmup_steps", "Warm-up"),
    ("optim", "Optimizer"),
    ("weight_decay", "Weight decay"),
    ("max_length", "Maximum tokens per row"),
    ("packing", "Packing"),
    ("beta", "Beta"),
    ("gradient_checkpointing", "Gradient checkpointing"),
)
"""The most important fields of TRL's config, and their names in the card."""


def metrics_table(metrics: FinalMetrics | None) -> str:
    """The metrics of a finished run."""
    if metrics is None:
        return ""
    seconds, speed, memory = metrics.seconds, metrics.tokens_per_second, metrics.peak_memory
    rows = {
        "Steps": _format_number(metrics.steps),
        "Epochs": _format_number(metrics.epochs),
        "Tokens": _format_number(metrics.tokens),
        "Reward, first and last": _range_cell(metrics.first_reward, metrics.last_reward),
        "Reward on held-out tasks": _format_number(metrics.eval_reward),
        "Step of the model": _format_number(metrics.kept_step),
        "Loss, first and last": _range_cell(metrics.first_loss, metrics.last_loss),
        "Loss on the test split": _format_number(metrics.eval_loss),
        "Seconds": _format_number(seconds and round(seconds, 1)),
        "Tokens per second": _format_number(speed and round(speed)),
        "Peak memory": f"{memory / 2**30:.1f} GiB" if memory else "",
    }
    return f"## Metrics\n\n{_markdown_table(rows)}"


def provenance_table(record: TrainingRecord) -> str:
    """The command, the data and the config of a run."""
    adapter, lora = "", record.settings.get("lora")
    if lora is not None:
        layers = ", ".join(lora.get("target_modules") or ()) or "all linear layers"
        alpha = lora.get("alpha") or 2 * lora["rank"]
        merged = "merged" if lora.get("merge_adapter", True) else "not merged"
        adapter = (
            f"LoRA of rank {lora['rank']}, alpha {alpha}, on {to_single_line(layers)}, {merged}"
        )
    rows = {
        "Model": inline_code(record.model),
        **(_data_rows(record.data) if record.data is not None else {}),
        **(_environment_rows(record) if record.environment is not None else {}),
        "Adapter": adapter,
        **{
            name: "yes" if (value := record.config[field]) is True else inline_code(value)
            for field, name in _CONFIG_ROWS
            if record.config.get(field) not in (None, False)
        },
        "Seed": _format_number(record.seeds.get("seed")),
        "Resumed after step": ", ".join(map(_format_number, record.resumed_from)),
        "Extended from a schedule of": ", ".join(f"{n:,} steps" for n in record.extended_from),
        "Devices": ", ".join(
            f"{record.devices.count(device)} x {to_single_line(device)}"
            for device in dict.fromkeys(record.devices)
        ),
    }
    command = f"{code_block(record.command, 'bash')}\n\n" if record.command else ""
    return (
        f"## How it was trained\n\n{command}{_markdown_table(rows)}\n\n"
        "The whole configuration is in `training.json`, every logged step in `log.jsonl`."
    )


def _data_rows(data: DataRecord) -> dict[str, str]:
    digest = inline_code(data.digest[:16])
    return {
        "Data": f"{inline_code(data.path)}, {data.rows:,} rows, SHA-256 {digest}",
        "Environments": ", ".join(
            f"{inline_code(name)} ({rows:,} rows)" for name, rows in data.environments.items()
        ),
        "Dropped": f"{data.left_out:,} rows" if data.left_out else "",
        "Truncated": f"{data.cut:,} rows" if data.cut else "",
        "Test split": f"{data.test_rows:,} rows" if data.test_rows else "",
    }


def _environment_rows(record: TrainingRecord) -> dict[str, str]:
    assert record.environment is not None
    settings = record.settings
    reward_funcs = settings.get("reward_funcs") or ()
    return {
        "Environment": inline_code(record.environment.spec),
        "Task": inline_code(json.dumps(settings["task"])) if settings.get("task") else "",
        "Curriculum": ", ".join(map(inline_code, settings.get("curriculum") or ())),
        "Groups per step": _format_number(settings.get("groups")),
        "Group size": _format_number(settings.get("group_size")),
        "Maximum tokens per episode": _format_number(settings.get("max_episode_tokens")),
        "Maximum tokens per reply": _format_number(settings.get("max_tokens")),
        "Temperature": _format_number(settings.get("temperature")),
        "Zero-variance groups": str(settings.get("zero_variance_groups", "")),
        "Credit": str(settings.get("credit", "")),
        "Reward functions": ", ".join(inline_code(name) for name in reward_funcs),
    }


def _markdown_table(rows: dict[str, str]) -> str:
    return markdown_table(("", ""), [(name, value) for name, value in rows.items() if value])


def _range_cell(first: float | None, last: float | None) -> str:
    """A cell of a card's table: the first and the last value of a metric."""
    if first is None or last is None:
        return ""
    return f"{_format_number(first)} to {_format_number(last)}"


def _format_number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.4g}" if isinstance(value, float) and value < 1000 else f"{value:,.0f}"
