"""Fields of TRL's configs, set from text: `--set key=value`.

Any field can be set but those on which a promise of Ludus rests, or which an option of its own
decides. Such a field is accepted with the value that is in force anyway, and refused with any other
in a line that names the option. TRL documents what the fields do.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ludus.errors import ConfigError, closest_match, did_you_mean
from ludus.train.trl_fields import field_names

_TOKENIZATION = (
    "rows are made into tokens by Ludus, under the template that the model is asked with"
)
_LOSS = "the loss is on the assistant's tokens alone, always"
_CHECKPOINTS = "checkpoints are made by time; use --checkpoint-every 10m"
_HUB = "use --push-to-hub"
_MODEL_LOADING = "the model is loaded by Ludus"
_PROGRESS = "progress is shown by Ludus"
_ROW_LAYOUT = "Ludus decides how rows are laid out, by --packing and the device"
MANAGED_FIELDS: Mapping[str, str] = {
    "output_dir": "use --output-dir",
    "report_to": "use --report-to",
    "max_length": "use --max-length",
    "packing": "use --packing",
    "eval_packing": "use --packing, which goes for both",
    "num_train_epochs": "use --epochs",
    "max_steps": "use --steps",
    "per_device_train_batch_size": "use --batch-size",
    "gradient_accumulation_steps": "use --accumulate",
    "learning_rate": "use --learning-rate",
    "beta": "use --beta",
    "gradient_checkpointing": "use --gradient-checkpointing",
    "seed": "use --seed",
    "data_seed": "use --seed",
    "bf16": "use --precision",
    "fp16": "use --precision",
    "use_cpu": "use --device",
    **dict.fromkeys(
        ("torch_compile", "torch_compile_mode", "torch_compile_backend"), "use --compile"
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
"""Fields that decide what is logged, or how fast it goes, and never what is learned."""
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
"""What Ludus does in every run, in the words of fields that it does not pass on."""
_RENAMED_FIELDS = {
    "max_seq_length": ("max_length", "max_completion_length"),
    "max_length": ("max_completion_length",),
    "evaluation_strategy": ("eval_strategy",),
    "warmup_ratio": ("warmup_steps",),
    "no_cuda": ("use_cpu",),
}
"""What fields were called before, or are called in the configs of other methods."""
_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_NULLS = ("none", "null")


def parse_overrides(
    config: type,
    overrides: Mapping[str, Any],
    managed: Mapping[str, str] = MANAGED_FIELDS,
    effective: Mapping[str, Any] = FIXED_VALUES,
) -> dict[str, Any]:
    """The values for a config's fields, each read by the type of its field.

    What Ludus decides is left out where it is the same as `in_force`, and else refused.
    """
    known = {field.name for field in fields(config) if field.init}
    hints = typing.get_type_hints(config)
    found = {}
    for key, value in overrides.items():
        if key not in known:
            raise _unknown_field_error(key, known, managed)
        read = _parse_value(key, value, hints[key]) if isinstance(value, str) else value
        if (why := _managed_reason(key, managed)) is None:
            found[key] = read
        elif key not in effective or effective[key] != read:
            raise ConfigError(f"--set {key} is managed by Ludus: {why}.")
    return found


def check_override_keys(
    method: str, overrides: Mapping[str, Any], managed: Mapping[str, str] = MANAGED_FIELDS
) -> None:
    """Raise for keys that the config of `method` does not have; imports neither TRL nor torch."""
    known = field_names(method) if overrides else None
    if known is None:
        return
    for key in overrides:
        if key not in known:
            raise _unknown_field_error(key, set(known), managed)


def drop_redundant(
    overrides: Mapping[str, Any], managed: Mapping[str, str] = MANAGED_FIELDS
) -> dict[str, Any]:
    """Of overrides that are `checked`, those that say more than what is in force anyway."""
    return {key: value for key, value in overrides.items() if _managed_reason(key, managed) is None}


def _unknown_field_error(key: str, known: set[str], refused: Mapping[str, str]) -> ConfigError:
    meant = next((name for name in _RENAMED_FIELDS.get(key, ()) if name in known), None)
    hint = did_you_mean(meant or key, known, "See TRL's documentation of the config.")
    why = _managed_reason(meant or closest_match(key, known) or "", refused)
    instead = f" It is managed by Ludus: {why}." if why else ""
    return ConfigError(f"--set {key}: the trainer has no such field. {hint}{instead}")


def _managed_reason(key: str, refused: Mapping[str, str]) -> str | None:
    return _HUB if key.startswith(("hub_", "push_to_hub")) else refused.get(key)


def _parse_value(key: str, text: str, hint: Any) -> Any:
    """The text as the first kind that the field takes and that it can be read as."""
    kinds = set(_union_members(hint))
    if type(None) in kinds and text.lower() in _NULLS:
        return None
    if bool in kinds and text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    if {dict, list} & kinds and (read := _parse_json_container(text)) is not None:
        return read
    if str in kinds or any(_is_enum(kind) for kind in kinds):
        return text
    raise ConfigError(f"--set {key}={text} cannot be read: {_describe_kinds(kinds)} is wanted.")


def _union_members(hint: Any) -> list[Any]:
    """`int | None` as its parts; `dict[str, Any]` as `dict`."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return [kind for part in typing.get_args(hint) for kind in _union_members(part)]
    if origin is typing.Literal:
        return [str]
    return [origin or hint]


def _parse_json_container(text: str) -> Any:
    try:
        read = json.loads(text)
    except ValueError:
        return None
    return read if isinstance(read, dict | list) else None


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "__members__")


def _describe_kinds(kinds: set[Any]) -> str:
    names: dict[Any, str] = {
        **{bool: "true or false", int: "a whole number", float: "a number"},
        **dict.fromkeys((dict, list), "JSON"),
    }
    found = [words for kind, words in names.items() if kind in kinds]
    return " or ".join(dict.fromkeys(found)) or "something else"
