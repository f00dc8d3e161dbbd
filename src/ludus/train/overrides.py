"""Fields of TRL's configs, set from text: `--set key=value`.

Any field can be set but those on which a promise of Ludus rests, or which an option of its own
decides; these say so. What the fields do is TRL's business.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ludus.errors import BadSetting, closest, did_you_mean

_TOKENS = "rows are made into tokens by Ludus, under the template that the model is asked with"
_LOSS = "the loss is on the assistant's tokens alone, always"
_CHECKPOINTS = "checkpoints are made by time: use --checkpoint-every"
_HUB = "use --push-to-hub"
_LOADED = "the model is loaded by Ludus"
_QUIET = "progress is shown by Ludus"
_LAID_OUT = "Ludus decides how rows are laid out, by --packing and the device"
REFUSED: Mapping[str, str] = {
    "output_dir": "use --output-dir",
    "report_to": "use --report-to",
    "max_length": "use --max-length",
    "packing": "use --packing",
    "eval_packing": "use --packing, which goes for both",
    "num_train_epochs": "use --epochs",
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
        _TOKENS,
    ),
    **dict.fromkeys(
        ("save_strategy", "save_steps", "save_total_limit", "save_only_model",
         "resume_from_checkpoint", "load_best_model_at_end", "ignore_data_skip",
         "restore_callback_states_from_checkpoint"),
        _CHECKPOINTS,
    ),
    **dict.fromkeys(("padding_free", "pad_to_multiple_of", "packing_strategy"), _LAID_OUT),
    **dict.fromkeys(("disable_tqdm", "log_level", "log_level_replica"), _QUIET),
    **dict.fromkeys(("model_init_kwargs", "trust_remote_code"), _LOADED),
}  # fmt: skip
_YES = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_NONE = ("none", "null")


def checked(
    config: type, overrides: Mapping[str, Any], refused: Mapping[str, str] = REFUSED
) -> dict[str, Any]:
    """The values for a config's fields, each read by the type of its field."""
    known = {field.name for field in fields(config) if field.init}
    hints = typing.get_type_hints(config)
    return {key: _value(key, value, known, hints, refused) for key, value in overrides.items()}


def _value(
    key: str, value: Any, known: set[str], hints: Mapping[str, Any], refused: Mapping[str, str]
) -> Any:
    if key not in known:
        hint = did_you_mean(key, known, "See TRL's documentation of the config.")
        why = _why_not(closest(key, known) or "", refused)
        instead = f" It is not for you to set: {why}." if why else ""
        raise BadSetting(f"--set {key}: the trainer has no such field. {hint}{instead}")
    if (why := _why_not(key, refused)) is not None:
        raise BadSetting(f"--set {key} is not for you to set: {why}.")
    return _read(key, value, hints[key]) if isinstance(value, str) else value


def _why_not(key: str, refused: Mapping[str, str]) -> str | None:
    return _HUB if key.startswith(("hub_", "push_to_hub")) else refused.get(key)


def _read(key: str, text: str, hint: Any) -> Any:
    """The text as the first kind that the field takes and that it can be read as."""
    kinds = set(_kinds(hint))
    if type(None) in kinds and text.lower() in _NONE:
        return None
    if bool in kinds and text.lower() in _YES:
        return _YES[text.lower()]
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    if {dict, list} & kinds and (read := _structure(text)) is not None:
        return read
    if str in kinds or any(_is_enum(kind) for kind in kinds):
        return text
    raise BadSetting(f"--set {key}={text} cannot be read: {_wanted(kinds)} is wanted.")


def _kinds(hint: Any) -> list[Any]:
    """`int | None` as its parts; `dict[str, Any]` as `dict`."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return [kind for part in typing.get_args(hint) for kind in _kinds(part)]
    if origin is typing.Literal:
        return [str]
    return [origin or hint]


def _structure(text: str) -> Any:
    try:
        read = json.loads(text)
    except ValueError:
        return None
    return read if isinstance(read, dict | list) else None


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "__members__")


def _wanted(kinds: set[Any]) -> str:
    names: dict[Any, str] = {
        **{bool: "true or false", int: "a whole number", float: "a number"},
        **dict.fromkeys((dict, list), "JSON"),
    }
    found = [words for kind, words in names.items() if kind in kinds]
    return " or ".join(dict.fromkeys(found)) or "something else"
