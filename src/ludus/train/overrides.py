"""Overrides of fields of TRL's configs, which TRL documents.

Some fields are managed by Ludus, because a field of its own config sets them or because it relies
on their value. Such a field is accepted with the value that it has anyway; any other raises an
error that names the argument to use.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ludus.errors import ConfigError, MissingExtra, closest_match, did_you_mean
from ludus.options import parse_assignments

_TOKENIZATION = "rows are tokenized by Ludus, with the chat template that inference uses"
_LOSS = "the loss is always on the assistant's tokens alone"
_CHECKPOINTS = "checkpoints are saved by time; use `checkpoint_every`"
_HUB = "use `push_to_hub`"
_MODEL_LOADING = "the model is loaded by Ludus"
_PROGRESS = "progress is shown by Ludus"
_ROW_LAYOUT = "the batch layout follows from `packing` and the device"
MANAGED_FIELDS: Mapping[str, str] = {
    "output_dir": "use `out`",
    "report_to": "use `report_to`",
    "max_length": "use `max_length`",
    "packing": "use `packing`",
    "eval_packing": "use `packing`, which applies to both",
    "num_train_epochs": "use `epochs`",
    "max_steps": "use `steps`",
    "per_device_train_batch_size": "use `batch_size`",
    "gradient_accumulation_steps": "use `gradient_accumulation_steps`",
    "learning_rate": "use `learning_rate`",
    "beta": "use `beta`",
    "gradient_checkpointing": "use `gradient_checkpointing`",
    "seed": "use `seed`",
    "data_seed": "use `seed`",
    "bf16": "use `precision`",
    "fp16": "use `precision`",
    "use_cpu": "use `device`",
    **dict.fromkeys(
        ("torch_compile", "torch_compile_mode", "torch_compile_backend"), "use `compile`"
    ),
    "assistant_only_loss": _LOSS,
    "completion_only_loss": _LOSS,
    **dict.fromkeys(
        ("chat_template_path", "dataset_text_field", "dataset_kwargs", "dataset_num_proc",
         "eos_token", "pad_token", "truncation_mode", "shuffle_dataset", "remove_unused_columns"),
        _TOKENIZATION,
    ),
    **dict.fromkeys(
        ("save_strategy", "save_steps", "save_total_limit", "save_only_model",
         "resume_from_checkpoint", "load_best_model_at_end", "ignore_data_skip",
         "restore_callback_states_from_checkpoint"),
        _CHECKPOINTS,
    ),
    **dict.fromkeys(("padding_free", "pad_to_multiple_of", "packing_strategy"), _ROW_LAYOUT),
    **dict.fromkeys(("disable_tqdm", "log_level", "log_level_replica"), _PROGRESS),
    **dict.fromkeys(("model_init_kwargs", "trust_remote_code"), _MODEL_LOADING),
}  # fmt: skip
NON_DECISIVE_FIELDS = frozenset({
    "logging_steps", "logging_strategy", "logging_first_step", "log_on_each_node",
    "log_completions", "num_completions_to_print", "log_completions_hub_repo", "log_multimodal",
    "log_unique_prompts", "run_name", "project", "trackio_space_id", "trackio_bucket_id",
    "trackio_static_space_id", "include_num_input_tokens_seen", "skip_memory_metrics", "debug",
    "dataloader_num_workers", "dataloader_persistent_workers", "dataloader_pin_memory",
    "dataloader_prefetch_factor", "dataloader_multiprocessing_context", "torch_empty_cache_steps",
    "ddp_backend", "ddp_bucket_cap_mb", "ddp_timeout", "eval_accumulation_steps",
})  # fmt: skip
"""Fields that affect logging or speed, and never the trained weights."""
FIXED_VALUES: Mapping[str, Any] = {
    "assistant_only_loss": True,
    "completion_only_loss": True,
    "load_best_model_at_end": False,
    "packing_strategy": "bfd",
    "push_to_hub": False,
    "remove_unused_columns": True,
    "save_only_model": False,
    "truncation_mode": "keep_start",
    "trust_remote_code": False,
}
"""What Ludus does in every run, as values of fields that it does not pass to TRL."""
_RENAMED_FIELDS = {
    "max_seq_length": ("max_length", "max_completion_length"),
    "max_length": ("max_completion_length",),
    "evaluation_strategy": ("eval_strategy",),
    "warmup_ratio": ("warmup_steps",),
    "no_cuda": ("use_cpu",),
}
"""Former names of fields, and names in the configs of other methods."""
_TRL_SOURCES = (
    ("trl", "trainer/{method}_config.py"),
    ("trl", "trainer/base_config.py"),
    ("transformers", "training_args.py"),
)
"""Where the config class of a method and its bases are defined."""
_ENUM_SOURCES = (("transformers", "training_args.py"), ("transformers", "trainer_utils.py"))
_FILE_FIELDS = ("accelerator_config", "deepspeed", "fsdp_config")
"""Fields whose JSON object may also be in a file, which is given by its path."""
_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_NULLS = ("none", "null")
_TYPE_NAMES: Mapping[type, str] = {
    bool: "true or false", int: "a whole number", float: "a number", dict: "a JSON object",
    list: "a JSON list",
}  # fmt: skip
_BUILTIN_TYPES = {each.__name__: each for each in _TYPE_NAMES}


@dataclass(frozen=True, slots=True)
class TrlField:
    """What the value of a field of TRL's config may be."""

    types: frozenset[type]
    choices: Sequence[str]
    """The names that it takes, of an optimizer for instance; empty: any text."""


def parse_override_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """Parse overrides given as `key=value` or JSON objects; raise for a key that is given twice."""
    overrides: dict[str, Any] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if text.startswith("{"):
            new = parse_assignments([text])
        elif equals and key.strip():
            new = {key.strip().replace("-", "_"): value.strip()}
        else:
            raise ConfigError(f"`overrides` takes key=value, got {text!r}.")
        if twice := new.keys() & overrides.keys():
            raise ConfigError(f"`overrides` has {min(twice)} twice.")
        overrides |= new
    return overrides


def parse_overrides(
    method: str,
    overrides: Mapping[str, Any],
    managed: Mapping[str, str] = MANAGED_FIELDS,
    effective: Mapping[str, Any] | None = FIXED_VALUES,
) -> dict[str, Any]:
    """The overrides for the config of `method`, with strings parsed by the type of their field.

    Managed fields are left out if they have their `effective` value, or if none of these is known
    yet, and raise otherwise. Neither TRL nor torch is imported.
    """
    fields = read_fields(method) if overrides else {}
    parsed = {}
    for key, value in overrides.items():
        if key not in fields:
            raise _unknown_field_error(key, fields, managed)
        new = _parse_value(key, value, fields[key].types) if isinstance(value, str) else value
        if (reason := _managed_reason(key, managed)) is None:
            _check_value(key, new, fields[key])
            parsed[key] = new
        elif effective is not None and (key not in effective or effective[key] != new):
            raise ConfigError(f"`overrides`: {key} is managed by Ludus: {reason}.")
    return parsed


@cache
def read_fields(method: str) -> Mapping[str, TrlField]:
    """The fields of TRL's config.

    They are read from the source: importing TRL takes seconds, and a bad override should be
    reported before that.
    """
    enums = {
        node.name: node
        for node in _read_classes(_ENUM_SOURCES, method)
        if "ExplicitEnum" in map(ast.unparse, node.bases)
    }
    fields: dict[str, TrlField] = {}
    for node in _read_classes(_TRL_SOURCES, method):
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                types = frozenset(_annotated_types(line.annotation))
                # The config's own annotation comes before that of its bases.
                fields.setdefault(line.target.id, TrlField(types, _choices(line, enums)))
    return fields


def drop_redundant(
    overrides: Mapping[str, Any], managed: Mapping[str, str] = MANAGED_FIELDS
) -> dict[str, Any]:
    """The overrides without managed fields, which only repeat the value that they have anyway."""
    return {key: value for key, value in overrides.items() if _managed_reason(key, managed) is None}


def _unknown_field_error(
    key: str, known: Collection[str], managed: Mapping[str, str]
) -> ConfigError:
    renamed = next((name for name in _RENAMED_FIELDS.get(key, ()) if name in known), None)
    hint = did_you_mean(renamed or key, known, "See TRL's documentation of the config.")
    reason = _managed_reason(renamed or closest_match(key, known) or "", managed)
    instead = f" It is managed by Ludus: {reason}." if reason else ""
    return ConfigError(f"`overrides`: TRL's config has no field {key}. {hint}{instead}")


def _managed_reason(key: str, managed: Mapping[str, str]) -> str | None:
    return _HUB if key.startswith(("hub_", "push_to_hub")) else managed.get(key)


def _parse_value(key: str, text: str, kinds: frozenset[type]) -> Any:
    """The text as a value of the first of the field's types that it can be parsed as."""
    if type(None) in kinds and text.lower() in _NULLS:
        return None
    if bool in kinds and text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    for kind in (int, float):
        if kind in kinds:
            with suppress(ValueError):
                return kind(text)
    if {dict, list} & kinds:
        with suppress(ValueError):
            if isinstance(value := json.loads(text), dict | list):
                return value
    if str in kinds:
        return text
    expected = [name for kind, name in _TYPE_NAMES.items() if kind in kinds]
    raise ConfigError(
        f"`overrides`: {key} must be {' or '.join(dict.fromkeys(expected))}, got {text!r}."
    )


def _check_value(key: str, value: Any, field: TrlField) -> None:
    """Raise for a value that TRL would reject only after torch is imported, or crash on."""
    for text in value if isinstance(value, list) else [value]:
        if field.choices and isinstance(text, str) and text not in field.choices:
            hint = did_you_mean(text, field.choices, f"Use {', '.join(field.choices)}.")
            raise ConfigError(f"`overrides`: {key} cannot be {text!r}. {hint}")
    in_file = key in _FILE_FIELDS and isinstance(value, str) and Path(value).is_file()
    if dict in field.types and not (value is None or isinstance(value, dict) or in_file):
        file = " or a file with one" if key in _FILE_FIELDS else ""
        raise ConfigError(f"`overrides`: {key} must be a JSON object{file}, got {value!r}.")


def _read_classes(sources: Iterable[tuple[str, str]], method: str) -> Iterator[ast.ClassDef]:
    """The classes in modules of packages that are not imported."""
    for package, pattern in sources:
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise MissingExtra.of("train", "Training")
        file = Path(spec.submodule_search_locations[0]) / pattern.format(method=method)
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                yield node


def _choices(line: ast.AnnAssign, enums: Mapping[str, ast.ClassDef]) -> Sequence[str]:
    """The values of the field's enum, or the `choices` in its metadata."""
    for name in ast.walk(line.annotation):
        if isinstance(name, ast.Name) and name.id in enums:
            members = (each for each in enums[name.id].body if isinstance(each, ast.Assign))
            return [ast.literal_eval(member.value) for member in members]
    metadata: dict[str, Any] = {}
    for keyword in line.value.keywords if isinstance(line.value, ast.Call) else ():
        if keyword.arg == "metadata":
            with suppress(ValueError):  # Not all choices are literals.
                metadata = ast.literal_eval(keyword.value)
    if ast.unparse(line.target) == "loss_type" and "choices" not in metadata:
        # DPO and GRPO quote them in the help, as they do `other_field='value'`.
        return [*dict.fromkeys(re.findall(r"(?<!=)'(\w+)'", metadata.get("help", "")))]
    choices: Sequence[str] = metadata.get("choices", ())
    return choices


def _annotated_types(annotation: ast.expr) -> Iterator[type]:
    """The types of an annotation such as `int | None`; enums, which text can name, as `str`."""
    if isinstance(annotation, ast.BinOp):
        yield from _annotated_types(annotation.left)
        yield from _annotated_types(annotation.right)
    elif isinstance(annotation, ast.Constant) and annotation.value is None:
        yield type(None)
    else:
        name = annotation.value if isinstance(annotation, ast.Subscript) else annotation
        yield _BUILTIN_TYPES.get(ast.unparse(name), str)
