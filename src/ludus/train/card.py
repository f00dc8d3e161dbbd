"""The card of a trained model: the README.md that people and the Hub read.

Written from the record of the run, and from nothing else: what is not in it is left out. A pure
function; files are `ludus.train.record`'s business, the Hub is `ludus.publish`'s.
"""

from __future__ import annotations

import json
from typing import Any

from ludus.data.markdown import code, fenced, front_matter_of, inline, table
from ludus.data.tools import JsonObject
from ludus.policy import smollm2
from ludus.train.training import Data, Figures, Training

CARD = "README.md"
PICTURE = "loss.png"
PICTURES = {"grpo": "reward.png"}
_METHODS = {
    "sft": "supervised fine-tuning",
    "dpo": "direct preference optimization",
    "grpo": "group relative policy optimization",
}
_ROWS = {
    "sft": ("conversation", "conversations"),
    "dpo": ("pair of conversations", "pairs of conversations"),
}
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


def card_of(training: Training, *, name: str, picture: bool = True) -> str:
    """The whole README.md. `name` is where the model is found: a folder, or USER/NAME."""
    parts = (
        f"# {inline(name.rstrip('/').rpartition('/')[2] or name)}",
        _opening(training),
        _figures(training.figures),
        _picture(training) if picture else "",
        _use(training, name),
        _trained(training),
        _versions(training),
    )
    return f"{_front_matter(training)}\n" + "\n\n".join(filter(None, parts)) + "\n"


def picture_of(kind: str) -> str:
    """The file that shows how it went."""
    return PICTURES.get(kind, PICTURE)


def _picture(training: Training) -> str:
    what = "Reward" if training.kind in PICTURES else "Loss"
    return f"![{what} over steps]({picture_of(training.kind)})"


def adapter_only(training: Training) -> bool:
    """Whether the folder holds an adapter, which needs its base model beside it."""
    lora = training.settings.get("lora")
    return lora is not None and not lora.get("merge", True)


def _front_matter(training: Training) -> str:
    adapter = adapter_only(training)
    values: JsonObject = {
        "base_model": training.base,
        "base_model_relation": training.base and ("adapter" if adapter else "finetune"),
        "license": training.license,
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["ludus", "trl", training.kind, "tool-use"],
    }
    return front_matter_of(values, [])


def _opening(training: Training) -> str:
    dialect = training.dialect
    what = "An adapter for" if adapter_only(training) else "Made from"
    whose = {"own": "the model's own", "trl": "the one that TRL trains it under"}
    template = whose.get(dialect.origin, "one that came from Ludus and is saved with the model")
    return (
        f"{what} {code(training.base or training.model)} by {_METHODS[training.kind]} on "
        f"{_trained_on(training)}, "
        f"with Ludus and TRL. Its chat template ({dialect.name}) is "
        f"{template}."
    )


def _trained_on(training: Training) -> str:
    if training.environment is not None:
        return f"the tasks of {code(training.environment.spec)}"
    rows = training.data.rows if training.data is not None else 0
    noun, many = _ROWS[training.kind]
    return f"{rows:,} {noun if rows == 1 else many}"


def _figures(figures: Figures | None) -> str:
    if figures is None:
        return ""
    seconds, speed = figures.seconds, figures.tokens_per_second
    memory = figures.peak_memory
    rows = {
        "Steps": _number(figures.steps),
        "Epochs": _number(figures.epochs),
        "Tokens": _number(figures.tokens),
        "Reward, first and last": _between(figures.first_reward, figures.last_reward),
        "Reward on held-out tasks": _number(figures.eval_reward),
        "Loss, first and last": _between(figures.first_loss, figures.last_loss),
        "Loss on the test split": _number(figures.eval_loss),
        "Seconds": _number(seconds and round(seconds, 1)),
        "Tokens per second": _number(speed and round(speed)),
        "Peak memory": f"{memory / 2**30:.1f} GiB" if memory else "",
    }
    return _listed("## Figures", rows)


def _use(training: Training, name: str) -> str:
    lines = (
        *_loading(training, json.dumps(name)),
        "",
        "def answer(answer: str) -> str:",
        '    """Submit the final answer.',
        "",
        "    Args:",
        "        answer: One integer.",
        '    """',
        "",
        'messages = [{"role": "user", "content": "What is 3 + 4?"}]',
        "prompt = tokenizer.apply_chat_template(",
        '    messages, tools=[answer], add_generation_prompt=True, return_tensors="pt"',
        ")",
        "reply = model.generate(**prompt, max_new_tokens=128)[0, prompt.input_ids.shape[1] :]",
        "print(tokenizer.decode(reply))",
    )
    played = f"ludus collect ENV --provider hf --model {name} -n 100"
    compared = f"ludus eval ENV --candidate {training.model} --candidate {name} -n 100"
    known = "" if not _over_smollm2(training) else (
        f"Its base is {code(smollm2.NAME)}, which Ludus fetches and loads; no other library knows "
        "it by that name.\n\n"
    )  # fmt: skip
    return (
        f"## Use it\n\n{known}{fenced(chr(10).join(lines), 'python')}\n\n"
        "Let it play an environment, and compare it with the model that it was made from:\n\n"
        + fenced(f"{played}\n{compared}", "bash")
    )


def _loading(training: Training, name: str) -> tuple[str, ...]:
    """The lines with which a model and its tokenizer are had."""
    if _over_smollm2(training):
        return (
            "from ludus.policy.load import load",
            "",
            f"policy = load({name})",
            "model, tokenizer = policy.model, policy.tokenizer",
        )
    models, imports = "AutoModelForCausalLM", ["from transformers import AutoTokenizer"]
    if adapter_only(training):
        models = "AutoPeftModelForCausalLM"
        imports.insert(0, f"from peft import {models}")
    else:
        imports = [f"from transformers import {models}, AutoTokenizer"]
    return (
        *imports,
        "",
        f"name = {name}",
        f"model = {models}.from_pretrained(name)",
        "tokenizer = AutoTokenizer.from_pretrained(name)",
    )


def _over_smollm2(training: Training) -> bool:
    """Whether it is an adapter over a model that only Ludus knows by its name."""
    return adapter_only(training) and training.model == smollm2.NAME


def _trained(training: Training) -> str:
    rows = {
        "Model": code(training.model),
        **(_rows(training.data) if training.data is not None else {}),
        **(_tasks(training) if training.environment is not None else {}),
        "Adapter": _adapter(training.settings.get("lora")),
        **{words: _setting(training.config.get(field)) for field, words in _TOLD},
        "Seed": _number(training.seeds.get("seed")),
        "Went on after step": ", ".join(map(_number, training.resumed_from)),
        "Devices": _counted(training.devices),
    }
    command = fenced(training.command, "bash") if training.command else ""
    whole = "The whole configuration is in `training.json`, every logged step in `log.jsonl`."
    return _listed(f"## How it was trained\n\n{command}".rstrip(), rows) + f"\n\n{whole}"


def _rows(data: Data) -> dict[str, str]:
    return {
        "Data": f"{code(data.path)}, {data.rows:,} rows, SHA-256 {code(data.digest[:16])}",
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
        "Tokens per episode, at the most": _number(settings.get("max_tokens")),
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


def _versions(training: Training) -> str:
    listed = ", ".join(f"{name} {number}" for name, number in training.versions.items())
    return f"## Versions\n\n{listed}"


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
