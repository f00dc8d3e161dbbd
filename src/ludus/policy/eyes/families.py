"""The models that Ludus can show pictures to, and how it finds their eyes.

All of these lay a picture out on a grid of patches, write one placeholder for each block of them,
and place them by rows and columns, in a way that the model itself works out (`get_rope_index`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ludus.errors import ConfigError, TemplateUnmarked
from ludus.policy.complaint import why
from ludus.policy.eyes.sight import Eyes
from ludus.policy.quiet import quiet, require
from ludus.policy.source import Kind, Source, base_of, find

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ludus.policy.dialect import Dialect

FAMILIES = {
    "qwen2_vl": "Qwen2-VL",
    "qwen2_5_vl": "Qwen2.5-VL",
    "qwen3_vl": "Qwen3-VL",
    "qwen3_vl_moe": "Qwen3-VL",
}
"""By the `model_type` in their configs."""
KNOWN = ", ".join(dict.fromkeys(FAMILIES.values()))

_PLACEHOLDER = "<|image_pad|>"
_MARK = f"<|vision_start|>{_PLACEHOLDER}<|vision_end|>"
_PROBE = "See {mark} there."


def sees(config: Any) -> bool:
    """Whether a model with this config is one that Ludus can show pictures to."""
    return getattr(config, "model_type", None) in FAMILIES and hasattr(config, "image_token_id")


def eyes_of(source: Source, tokenizer: PreTrainedTokenizerBase, dialect: Dialect) -> Eyes | None:
    """The eyes of the model that is there; None where it has none. Reads no weights."""
    if source.kind is Kind.ADAPTER:
        return eyes_of(base_of(source), tokenizer, dialect)
    config = _config(source)
    if not sees(config):
        return None
    eyes = _made(source, tokenizer, config)
    _prove(source, eyes, tokenizer, dialect)
    return eyes


def load_eyes(name: str, tokenizer: PreTrainedTokenizerBase) -> Eyes | None:
    """The eyes of the model of that name, whose tokenizer this is; None where it has none."""
    from ludus.policy.dialect import any_dialect

    try:
        return eyes_of(find(name), tokenizer, any_dialect(tokenizer))
    except TemplateUnmarked:
        return None


def _where(source: Source) -> dict[str, Any]:
    local = source.cached or source.kind is not Kind.HUB
    return {"local_files_only": local, "trust_remote_code": False}


def _config(source: Source) -> Any:
    from transformers import AutoConfig

    if source.kind is Kind.GGUF:
        return None
    # What is wrong with a config is said where the weights are read.
    with quiet(), suppress(Exception):
        return AutoConfig.from_pretrained(source.path, **_where(source))
    return None


def _made(source: Source, tokenizer: PreTrainedTokenizerBase, config: Any) -> Eyes:
    require("Showing pictures to a model", "PIL")
    from transformers import AutoImageProcessor

    token = tokenizer.convert_tokens_to_ids(_PLACEHOLDER)
    if token != config.image_token_id:
        raise ConfigError(
            f"The tokenizer of {source.name} does not have {_PLACEHOLDER} where the model looks "
            "for it. Name a folder whose tokenizer and config belong together."
        )
    try:
        with quiet():
            processor = AutoImageProcessor.from_pretrained(source.path, **_where(source))
    except Exception as error:
        words = why(source.name, "image processor", error, unreached=source.unreached)
        raise ConfigError(words) from None
    never = {config.video_token_id} - {None}
    return Eyes(processor, mark=_MARK, token=config.image_token_id, never=frozenset(never))


def _prove(
    source: Source, eyes: Eyes, tokenizer: PreTrainedTokenizerBase, dialect: Dialect
) -> None:
    """A picture must come out where it is shown: by the one who asks, and by a tool."""
    from ludus.policy import turns

    words = _PROBE.format(mark=eyes.mark)
    asked = turns.opening(tokenizer, dialect, [{"role": "user", "content": words}], None)
    result = {"role": "tool", "content": words, "tool_call_id": "a"}
    told = turns.answers(tokenizer, dialect, [result], None, ended=True)
    if not asked.count(eyes.token) == told.count(eyes.token) == 1:
        raise ConfigError(
            f"The chat template of {source.name} leaves pictures out. Give it one that writes "
            "messages as they are."
        )
