"""The tables of a trained model's card: its figures, and how it was trained.

Pure functions of the record of the run. A row that nothing is known of is left out.
"""

from __future__ import annotations

import json
from typing import Any

from ludus.data.markdown import code, fenced, inline, table
from ludus.data.tools import JsonObject
from ludus.train.training import Data, Figures, Training

_TOLD = (
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


def figures(found: Figures | None) -> str:
    """What came out; nothing while it is not known."""
    if found is None:
        return ""
    seconds, speed = found.seconds, found.tokens_per_second
    memory = found.peak_memory
    rows = {
        "Steps": _number(found.steps),
        "Epochs": _number(found.epochs),
        "Tokens": _number(found.tokens),
        "Reward, first and last": _between(found.first_reward, found.last_reward),
        "Reward on held-out tasks": _number(found.eval_reward),
        "Loss, first and last": _between(found.first_loss, found.last_loss),
        "Loss on the test split": _number(found.eval_loss),
        "Seconds": _number(seconds and round(seconds, 1)),
        "Tokens per second": _number(speed and round(speed)),
        "Peak memory": f"{memory / 2**30:.1f} GiB" if memory else "",
    }
    return _listed("## Figures", rows)


def provenance(training: Training) -> str:
    """What it was made from, and with which settings."""
    rows = {
        "Model": code(training.model),
        **(_rows(training.data) if training.data is not None else {}),
        **(_tasks(training) if training.environment is not None else {}),
        "Adapter": _adapter(training.settings.get("lora")),
        **{words: _setting(training.config.get(field)) for field, words in _TOLD},
        "Seed": _number(training.seeds.get("seed")),
        "Went on after step": ", ".join(map(_number, training.resumed_from)),
        "Extended from a schedule of": ", ".join(
            f"{steps:,} steps" for steps in training.extended_from
        ),
        "Devices": _counted(training.devices),
    }
    command = fenced(training.command, "bash") if training.command else ""
    whole = "The whole configuration is in `training.json`, every logged step in `log.jsonl`."
    return _listed(f"## How it was trained\n\n{command}".rstrip(), rows) + f"\n\n{whole}"


def _rows(data: Data) -> dict[str, str]:
    return {
        "Data": f"{code(data.path)}, {data.rows:,} rows, SHA-256 {code(data.digest[:16])}",
        "Environments": ", ".join(
            f"{code(name)} ({rows:,} rows)" for name, rows in data.environments.items()
        ),
        "Left out": f"{data.left_out:,} rows" if data.left_out else "",
        "Cut at the end": f"{data.cut:,} rows" if data.cut else "",
        "Test split": f"{data.test_rows:,} rows" if data.test_rows else "",
    }


def _tasks(training: Training) -> dict[str, str]:
    assert training.environment is not None
    settings = training.settings
    return {
        "Environment": code(training.environment.spec),
        "Task": code(json.dumps(settings["task"])) if settings.get("task") else "",
        "Tasks per step": _number(settings.get("groups")),
        "Attempts at each": _number(settings.get("group_size")),
        "Tokens per episode, at the most": _number(settings.get("max_episode_tokens")),
        "Tokens per reply, at the most": _number(settings.get("max_tokens")),
        "Temperature": _number(settings.get("temperature")),
        "Groups with equal rewards": str(settings.get("equal", "")),
        "Other rewards": ", ".join(code(name) for name in settings.get("rewards") or ()),
    }


def _adapter(lora: JsonObject | None) -> str:
    if lora is None:
        return ""
    layers = ", ".join(lora.get("targets") or ()) or "all linear layers"
    alpha = lora.get("alpha") or 2 * lora["rank"]
    merged = "merged" if lora.get("merge", True) else "not merged"
    return f"LoRA of rank {lora['rank']}, alpha {alpha}, on {inline(layers)}, {merged}"


def _listed(head: str, rows: dict[str, str]) -> str:
    return f"{head}\n\n" + table(("", ""), [(name, fact) for name, fact in rows.items() if fact])


def _between(first: float | None, last: float | None) -> str:
    return f"{_number(first)} to {_number(last)}" if first is not None and last is not None else ""


def _counted(devices: tuple[str, ...]) -> str:
    kinds = dict.fromkeys(devices)
    return ", ".join(f"{devices.count(kind)} x {inline(kind)}" for kind in kinds)


def _setting(value: Any) -> str:
    if value is None or value is False:
        return ""
    return "yes" if value is True else code(value)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.4g}" if isinstance(value, float) and value < 1000 else f"{value:,.0f}"
