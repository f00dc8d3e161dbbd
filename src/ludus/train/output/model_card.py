"""The card of a trained model: the README.md that people and the Hub read.

Written from the record of the run, and from nothing else: what is not in it is left out. A pure
function; its tables are in `ludus.train.output.card_tables`, files are `ludus.train.output.record`'s business, the Hub
is `ludus.publish`'s.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

from ludus.data.markdown import build_front_matter, code_block, inline_code, to_single_line
from ludus.data.tool_schema import JsonObject
from ludus.policy import smollm2
from ludus.train.output import card_tables
from ludus.train.output.next_steps import environment_arguments
from ludus.train.output.record_schema import TaskExample, TrainingRecord

CARD_FILE = "README.md"
LOSS_PLOT_FILE = "loss.png"
PLOT_FILES = {"grpo": "reward.png"}
_MAX_LINE_WIDTH = 80
"""Columns of a line of code, before the key that it may stand behind."""
_METHOD_NAMES = {
    "sft": "supervised fine-tuning",
    "dpo": "direct preference optimization",
    "grpo": "group relative policy optimization",
}
_ROW_NOUNS = {
    "sft": ("conversation", "conversations"),
    "dpo": ("pair of conversations", "pairs of conversations"),
}


def build_model_card(training: TrainingRecord, *, name: str, plot: bool = True) -> str:
    """The whole README.md. `name` is where the model is found: a folder, or USER/NAME."""
    parts = (
        f"# {to_single_line(name.rstrip('/').rpartition('/')[2] or name)}",
        _introduction(training),
        card_tables.metrics_table(training.figures),
        _plot_link(training) if plot else "",
        _usage(training, name),
        card_tables.provenance_table(training),
        _versions(training),
    )
    return f"{_front_matter(training)}\n" + "\n\n".join(filter(None, parts)) + "\n"


def plot_file(kind: str) -> str:
    """The file that shows how it went."""
    return PLOT_FILES.get(kind, LOSS_PLOT_FILE)


def _plot_link(training: TrainingRecord) -> str:
    what = "Reward" if training.kind in PLOT_FILES else "Loss"
    return f"![{what} over steps]({plot_file(training.kind)})"


def is_adapter_only(training: TrainingRecord) -> bool:
    """Whether the folder holds an adapter, which needs its base model beside it."""
    lora = training.settings.get("lora")
    return lora is not None and not lora.get("merge", True)


def _front_matter(training: TrainingRecord) -> str:
    adapter = is_adapter_only(training)
    values: JsonObject = {
        "base_model": training.base,
        "base_model_relation": training.base and ("adapter" if adapter else "finetune"),
        "license": training.license,
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "image-text-to-text" if training.sees else "text-generation",
        "tags": ["ludus", "trl", training.kind, "tool-use"],
    }
    return build_front_matter(values, [])


def _introduction(training: TrainingRecord) -> str:
    dialect = training.dialect
    what = "An adapter for" if is_adapter_only(training) else "Made from"
    whose = {"own": "the model's own", "trl": "the one that TRL trains it under"}
    template = whose.get(dialect.origin, "one that came from Ludus and is saved with the model")
    if kwargs := dialect.chat_template_kwargs:
        template += (
            f", saved with the model with these arguments: {inline_code(json.dumps(kwargs))}"
        )
    return (
        f"{what} {inline_code(training.base or training.model)} by {_METHOD_NAMES[training.kind]} on "
        f"{_trained_on(training)}, "
        f"with Ludus and TRL. Its chat template ({dialect.name}) is "
        f"{template}."
    )


def _trained_on(training: TrainingRecord) -> str:
    if training.environment is not None:
        return f"the tasks of {inline_code(training.environment.spec)}"
    rows = training.data.rows if training.data is not None else 0
    noun, many = _ROW_NOUNS[training.kind]
    return f"{rows:,} {noun if rows == 1 else many}"


def _usage(training: TrainingRecord, name: str) -> str:
    code_lines = "\n".join(
        (*_loading_code(training, json.dumps(name)), *_example_code(training.example))
    )
    environment = environment_arguments(training)
    played = ("collect", *environment, "--provider", "hf", "--model", name, "-n", "100")
    candidates = ("--candidate", training.model, "--candidate", name, "-n", "100")
    compared = ("eval", *environment, *candidates)
    known = "" if not _is_smollm2_adapter(training) else (
        f"Its base is {inline_code(smollm2.NAME)}, which Ludus fetches and loads; no other library knows "
        "it by that name.\n\n"
    )  # fmt: skip
    commands = "\n".join(f"ludus {shlex.join(words)}" for words in (played, compared))
    return (
        f"## Use it\n\n{known}{code_block(code_lines, 'python')}\n\n"
        "Let it play an environment, and compare it with the model that it was made from:\n\n"
        + code_block(commands, "bash")
    )


def _example_code(example: TaskExample | None) -> tuple[str, ...]:
    """The lines in which it is given a task that it was trained on."""
    if example is None:
        return ()
    tools = (f"tools = {_python_literal(example.tools)}",) if example.tools else ()
    offered = "tools=tools, " if example.tools else ""
    return (
        "",
        *tools,
        f"messages = {_python_literal(example.messages)}",
        "prompt = tokenizer.apply_chat_template(",
        f'    messages, {offered}add_generation_prompt=True, return_tensors="pt"',
        ")",
        "reply = model.generate(**prompt, max_new_tokens=128)[0, prompt.input_ids.shape[1] :]",
        "print(tokenizer.decode(reply))",
    )


def _python_literal(value: Any, indent: int = 0) -> str:
    """JSON as Python writes it, broken into lines where it is long."""
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


def _loading_code(training: TrainingRecord, name: str) -> tuple[str, ...]:
    """The lines with which a model and its tokenizer are had."""
    if _is_smollm2_adapter(training):
        return (
            "from ludus.policy.load import load",
            "",
            f"policy = load({name})",
            "model, tokenizer = policy.model, policy.tokenizer",
        )
    if training.sees:
        return _vision_loading_code(name)
    models, imports = "AutoModelForCausalLM", ["from transformers import AutoTokenizer"]
    if is_adapter_only(training):
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


def _vision_loading_code(name: str) -> tuple[str, ...]:
    """As Ludus loads it, an adapter over its base too."""
    return (
        "from ludus.policy.load import load",
        "",
        f"policy = load({name})",
        "model, tokenizer = policy.model, policy.tokenizer",
        "image_processor = policy.vision.image_processor",
    )


def _is_smollm2_adapter(training: TrainingRecord) -> bool:
    """Whether it is an adapter over a model that only Ludus knows by its name."""
    return is_adapter_only(training) and training.model == smollm2.NAME


def _versions(training: TrainingRecord) -> str:
    listed = ", ".join(f"{name} {number}" for name, number in training.versions.items())
    return f"## Versions\n\n{listed}"
