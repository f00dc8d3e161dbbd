"""The model card, `README.md`, built from the record of the run."""

from __future__ import annotations

import json
import shlex

from ludus.data.hub import (
    code_block,
    hub_front_matter,
    inline_code,
    markdown_table,
    to_single_line,
)
from ludus.data.tool_schema import JsonObject
from ludus.environment.mixture import mix
from ludus.policy import smollm2
from ludus.rollout import SYSTEM_PROMPT
from ludus.train.output.record import TrainingRecord
from ludus.train.output.training_folder import PLOT_FILES

UNKNOWN_ENVIRONMENT = "ENV"
"""Placeholder for an environment that the rows do not name."""
_METHOD_NAMES = {
    "sft": "supervised fine-tuning",
    "dpo": "direct preference optimization",
    "grpo": "group relative policy optimization",
}
_CONFIG_FIELDS = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate"),
    *("lr_scheduler_type", "warmup_steps", "max_length", "beta"),
)
"""The most important fields of TRL's config."""


def build_model_card(record: TrainingRecord, *, name: str, plot: bool = True) -> str:
    """The whole `README.md`. `name` is what the model is loaded by: a folder, or USER/NAME."""
    adapter = record.is_adapter_only
    front_matter: JsonObject = {
        "base_model": record.base,
        "base_model_relation": record.base and ("adapter" if adapter else "finetune"),
        "license": record.license,
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "image-text-to-text" if record.accepts_images else "text-generation",
        "tags": ["ludus", "trl", record.kind, "tool-use"],
    }
    versions = ", ".join(f"{package} {version}" for package, version in record.versions.items())
    metrics: JsonObject = {}
    if record.metrics is not None:
        fields = record.metrics.model_dump(exclude={"buckets", "peak_memory"})
        metrics = {name.replace("_", " ").capitalize(): value for name, value in fields.items()}
        if memory := record.metrics.peak_memory:
            metrics["Peak memory"] = f"{memory / 2**30:.1f} GiB"
    parts = (
        f"# {to_single_line(name.rstrip('/').rpartition('/')[2] or name)}",
        _introduction(record),
        f"## Metrics\n\n{_table(metrics)}" if metrics else "",
        f"{record.comparison}." if record.comparison else "",
        f"![Training curve]({PLOT_FILES[record.kind]})" if plot else "",
        _usage_section(record, name),
        _provenance_table(record),
        f"## Versions\n\n{versions}",
    )
    body = "\n\n".join(filter(None, parts))
    return f"{hub_front_matter(front_matter, [])}\n{body}\n"


def environment_arguments(training: TrainingRecord) -> tuple[str, ...]:
    """The arguments of `ludus eval` for the environment that the model was trained on.

    They include the task and the system prompt of the training, which change the results.
    """
    if training.environment is not None:
        spec, task = training.environment.spec, training.settings.get("task")
        prompt = training.settings.get("system_prompt", SYSTEM_PROMPT) or ""
    elif training.data is not None and training.data.environments:
        spec, task = str(mix(training.data.environments)), training.data.task
        prompt = training.data.system_prompt
    else:
        return (UNKNOWN_ENVIRONMENT,)
    task_option = ("--task", json.dumps(task, ensure_ascii=False)) if task else ()
    prompt_option = ("--system-prompt", prompt) if prompt not in (None, SYSTEM_PROMPT) else ()
    return (spec, *task_option, *prompt_option)


def _introduction(record: TrainingRecord) -> str:
    what = "An adapter for" if record.is_adapter_only else "Trained from"
    if record.environment is not None:
        trained_on = f"the tasks of {inline_code(record.environment.spec)}"
    else:
        rows = record.data.rows if record.data is not None else 0
        trained_on = f"{rows:,} {'pairs' if record.kind == 'dpo' else 'conversations'}"
    kwargs = record.chat_format.chat_template_kwargs
    template = f", with the arguments {inline_code(json.dumps(kwargs))}" if kwargs else ""
    return (
        f"{what} {inline_code(record.base or record.model)} by {_METHOD_NAMES[record.kind]} on "
        f"{trained_on}, with Ludus and TRL. Its chat template ({record.chat_format.name}) is saved "
        f"with the model{template}."
    )


def _usage_section(record: TrainingRecord, name: str) -> str:
    """Code to load the model, and commands to collect with it and evaluate it."""
    only_ludus = record.is_adapter_only and record.model == smollm2.NAME
    if record.accepts_images or only_ludus:
        imports = ["from ludus.policy.load import load"]
        loading = [
            f"policy = load({json.dumps(name)})",
            "model, tokenizer = policy.model, policy.tokenizer",
        ]
    else:
        auto = "AutoPeftModelForCausalLM" if record.is_adapter_only else "AutoModelForCausalLM"
        package = "peft" if record.is_adapter_only else "transformers"
        imports = [f"from {package} import {auto}", "from transformers import AutoTokenizer"]
        loading = [
            f"name = {json.dumps(name)}",
            f"model = {auto}.from_pretrained(name)",
            "tokenizer = AutoTokenizer.from_pretrained(name)",
        ]
    code = "\n".join(
        (
            *imports,
            "",
            *loading,
            'messages = [{"role": "user", "content": "Hello."}]',
            "prompt = tokenizer.apply_chat_template(",
            '    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"',
            ")",
            "reply = model.generate(**prompt, max_new_tokens=128)",
            "print(tokenizer.decode(reply[0, prompt.input_ids.shape[1] :]))",
        )
    )
    environment = environment_arguments(record)
    candidates = ("--candidate", record.model, "--candidate", name, "-n", "100")
    commands = "\n".join(
        f"ludus {shlex.join(words)}"
        for words in (
            ("collect", *environment, "--agent", f"hf:{name}", "-n", "100"),
            ("eval", *environment, *candidates),
        )
    )
    note = f"Its base model is {inline_code(smollm2.NAME)}, a name that only Ludus resolves.\n\n"
    return (
        f"## Usage\n\n{note if only_ludus else ''}{code_block(code, 'python')}\n\n"
        "Collect episodes with it, and compare it with its base model:\n\n"
        + code_block(commands, "bash")
    )


def _provenance_table(record: TrainingRecord) -> str:
    """The command, the data and the config of a run."""
    data, lora = record.data, record.settings.get("lora")
    rows: JsonObject = {"Model": inline_code(record.model)}
    if data is not None:
        digest = inline_code(data.digest[:16])
        rows["Data"] = f"{inline_code(data.path)}, {data.rows:,} rows, SHA-256 {digest}"
        rows["Environments"] = ", ".join(
            f"{inline_code(name)} ({count:,} rows)" for name, count in data.environments.items()
        )
        for name in ("dropped", "truncated", "test_rows"):
            count = getattr(data, name)
            label = name.replace("_", " ").capitalize()
            rows[label] = f"{count:,} rows" if count else None
    if record.environment is not None:
        rows["Environment"] = inline_code(record.environment.spec)
    if lora is not None:
        layers = ", ".join(lora.get("target_modules") or ()) or "all linear layers"
        alpha = lora.get("alpha") or 2 * lora["rank"]
        merged = "merged" if lora.get("merge_adapter", True) else "not merged"
        rows["Adapter"] = (
            f"LoRA of rank {lora['rank']}, alpha {alpha}, on {to_single_line(layers)}, {merged}"
        )
    for field in _CONFIG_FIELDS:
        if (value := record.config.get(field)) not in (None, False):
            rows[inline_code(field)] = inline_code(json.dumps(value))
    rows["Resumed after step"] = ", ".join(f"{step:,}" for step in record.resumed_from)
    rows["Extended from a schedule of"] = ", ".join(f"{n:,} steps" for n in record.extended_from)
    rows["Devices"] = ", ".join(map(to_single_line, record.devices))
    command = f"{code_block(record.command, 'bash')}\n\n" if record.command else ""
    return (
        f"## How it was trained\n\n{command}{_table(rows)}\n\n"
        "The whole configuration is in `training.json`, every logged step in `log.jsonl`."
    )


def _table(rows: JsonObject) -> str:
    """A table without the rows that have no value."""
    cells = []
    for name, value in rows.items():
        if isinstance(value, int | float):
            small = isinstance(value, float) and value < 1000
            cells.append((name, f"{value:,.4g}" if small else f"{value:,.0f}"))
        elif value:
            cells.append((name, value))
    return markdown_table(("", ""), cells)
