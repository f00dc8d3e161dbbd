"""The model card, `README.md`, built from the record of the run."""

from __future__ import annotations

import json
import shlex
from typing import Any

from ludus.data.hub import build_front_matter, code_block, inline_code, to_single_line
from ludus.data.tool_schema import JsonObject
from ludus.policy import smollm2
from ludus.train.output import card_tables
from ludus.train.output.next_steps import environment_arguments
from ludus.train.output.record_schema import TaskExample, TrainingRecord
from ludus.train.output.training_folder import PLOT_FILES, plot_file

_MAX_LINE_WIDTH = 80
"""Width of the lines of literals in the example code, without their key."""
_METHOD_NAMES = {
    "sft": "supervised fine-tuning",
    "dpo": "direct preference optimization",
    "grpo": "group relative policy optimization",
}
_ROW_NOUNS = {
    "sft": ("conversation", "conversations"),
    "dpo": ("pair of conversations", "pairs of conversations"),
}
_TEMPLATE_ORIGINS = {"own": "the model's own", "trl": "the one that TRL trains the model with"}


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
    plot_title = "Reward" if record.kind in PLOT_FILES else "Loss"
    versions = ", ".join(f"{package} {version}" for package, version in record.versions.items())
    parts = (
        f"# {to_single_line(name.rstrip('/').rpartition('/')[2] or name)}",
        _introduction_section(record),
        card_tables.metrics_table(record.metrics),
        f"![{plot_title} over steps]({plot_file(record.kind)})" if plot else "",
        _usage_section(record, name),
        card_tables.provenance_table(record),
        f"## Versions\n\n{versions}",
    )
    body = "\n\n".join(filter(None, parts))
    return f"{build_front_matter(front_matter, [])}\n{body}\n"


def _introduction_section(record: TrainingRecord) -> str:
    chat_format = record.dialect
    what = "An adapter for" if record.is_adapter_only else "Trained from"
    template = _TEMPLATE_ORIGINS.get(chat_format.origin, "Ludus's, and saved with the model")
    if kwargs := chat_format.chat_template_kwargs:
        template += (
            f", saved with the model with these arguments: {inline_code(json.dumps(kwargs))}"
        )
    if record.environment is not None:
        trained_on = f"the tasks of {inline_code(record.environment.spec)}"
    else:
        rows = record.data.rows if record.data is not None else 0
        singular, plural = _ROW_NOUNS[record.kind]
        trained_on = f"{rows:,} {singular if rows == 1 else plural}"
    return (
        f"{what} {inline_code(record.base or record.model)} by {_METHOD_NAMES[record.kind]} on "
        f"{trained_on}, with Ludus and TRL. Its chat template ({chat_format.name}) is {template}."
    )


def _usage_section(record: TrainingRecord, name: str) -> str:
    code = "\n".join((*_loading_code(record, json.dumps(name)), *_example_code(record.example)))
    environment = environment_arguments(record)
    collect = ("collect", *environment, "--agent", f"hf:{name}", "-n", "100")
    candidates = ("--candidate", record.model, "--candidate", name, "-n", "100")
    evaluate = ("eval", *environment, *candidates)
    note = "" if not _is_smollm2_adapter(record) else (
        f"Its base model is {inline_code(smollm2.NAME)}, a name that only Ludus resolves.\n\n"
    )  # fmt: skip
    commands = "\n".join(f"ludus {shlex.join(words)}" for words in (collect, evaluate))
    return (
        f"## Usage\n\n{note}{code_block(code, 'python')}\n\n"
        "Collect episodes with it, and compare it with its base model:\n\n"
        + code_block(commands, "bash")
    )


def _example_code(example: TaskExample | None) -> tuple[str, ...]:
    """The lines that give the model a task that it was trained on."""
    if example is None:
        return ()
    tools = (f"tools = {_python_literal(example.tools)}",) if example.tools else ()
    argument = "tools=tools, " if example.tools else ""
    return (
        "",
        *tools,
        f"messages = {_python_literal(example.messages)}",
        "prompt = tokenizer.apply_chat_template(",
        f'    messages, {argument}add_generation_prompt=True, return_tensors="pt"',
        ")",
        "reply = model.generate(**prompt, max_new_tokens=128)[0, prompt.input_ids.shape[1] :]",
        "print(tokenizer.decode(reply))",
    )


def _python_literal(value: Any, indent: int = 0) -> str:
    """JSON as a Python literal, over several lines if it is long."""
    if isinstance(value, dict):
        items = [
            f"{json.dumps(key)}: {_python_literal(item, indent + 4)}" for key, item in value.items()
        ]
        before, after = "{", "}"
    elif isinstance(value, list | tuple):
        items = [_python_literal(item, indent + 4) for item in value]
        before, after = "[", "]"
    else:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
    flat = f"{before}{', '.join(items)}{after}"
    if "\n" not in flat and indent + len(flat) <= _MAX_LINE_WIDTH:
        return flat
    lines = "".join(f"{' ' * (indent + 4)}{item},\n" for item in items)
    return f"{before}\n{lines}{' ' * indent}{after}"


def _loading_code(record: TrainingRecord, name: str) -> tuple[str, ...]:
    """The lines that load the model and its tokenizer."""
    if record.accepts_images or _is_smollm2_adapter(record):
        vision = (
            ("image_processor = policy.vision.image_processor",) if record.accepts_images else ()
        )
        return (
            "from ludus.policy.load import load",
            "",
            f"policy = load({name})",
            "model, tokenizer = policy.model, policy.tokenizer",
            *vision,
        )
    if record.is_adapter_only:
        auto_class = "AutoPeftModelForCausalLM"
        imports = [f"from peft import {auto_class}", "from transformers import AutoTokenizer"]
    else:
        auto_class = "AutoModelForCausalLM"
        imports = [f"from transformers import {auto_class}, AutoTokenizer"]
    return (
        *imports,
        "",
        f"name = {name}",
        f"model = {auto_class}.from_pretrained(name)",
        "tokenizer = AutoTokenizer.from_pretrained(name)",
    )


def _is_smollm2_adapter(record: TrainingRecord) -> bool:
    """Whether it is an adapter for a model whose name only Ludus resolves."""
    return record.is_adapter_only and record.model == smollm2.NAME
