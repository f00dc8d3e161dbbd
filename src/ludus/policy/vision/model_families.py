"""The models that Ludus can show pictures to, and how it finds their eyes.

All of these lay a picture out on a grid of patches, write one placeholder for each block of them,
and place them by rows and columns, in a way that the model itself works out (`get_rope_index`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ludus.errors import ConfigError, TemplateUnmarked
from ludus.policy.hf_logging import require, suppress_hf_logging
from ludus.policy.load_errors import describe_load_error
from ludus.policy.model_ref import ModelKind, ModelRef, resolve_base_model, resolve_model
from ludus.policy.vision.processor import VisionProcessor

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ludus.policy.chat.chat_format import ChatFormat

VISION_FAMILIES = {
    "qwen2_vl": "Qwen2-VL",
    "qwen2_5_vl": "Qwen2.5-VL",
    "qwen3_vl": "Qwen3-VL",
    "qwen3_vl_moe": "Qwen3-VL",
}
"""By the `model_type` in their configs."""
SUPPORTED_FAMILIES = ", ".join(dict.fromkeys(VISION_FAMILIES.values()))

_IMAGE_TOKEN = "<|image_pad|>"
_IMAGE_PLACEHOLDER = f"<|vision_start|>{_IMAGE_TOKEN}<|vision_end|>"
_PROBE_TEXT = "See {mark} there."


def supports_images(config: Any) -> bool:
    """Whether a model with this config is one that Ludus can show pictures to."""
    return getattr(config, "model_type", None) in VISION_FAMILIES and hasattr(
        config, "image_token_id"
    )


def build_vision_processor(
    source: ModelRef, tokenizer: PreTrainedTokenizerBase, dialect: ChatFormat
) -> VisionProcessor | None:
    """The eyes of the model that is there; None where it has none. Reads no weights."""
    if source.kind is ModelKind.ADAPTER:
        return build_vision_processor(resolve_base_model(source), tokenizer, dialect)
    config = _read_config(source)
    if not supports_images(config):
        return None
    eyes = _build_processor(source, tokenizer, config)
    _check_template_keeps_images(source, eyes, tokenizer, dialect)
    return eyes


def load_vision_processor(name: str, tokenizer: PreTrainedTokenizerBase) -> VisionProcessor | None:
    """The eyes of the model of that name, whose tokenizer this is; None where it has none."""
    from ludus.policy.chat.chat_format import find_chat_format_with_fallback

    try:
        return build_vision_processor(
            resolve_model(name), tokenizer, find_chat_format_with_fallback(tokenizer)
        )
    except TemplateUnmarked:
        return None


def _loading_kwargs(source: ModelRef) -> dict[str, Any]:
    local = source.cache_only or source.kind is not ModelKind.HUB
    return {"local_files_only": local, "trust_remote_code": False}


def _read_config(source: ModelRef) -> Any:
    from transformers import AutoConfig

    if source.kind is ModelKind.GGUF:
        return None
    # What is wrong with a config is said where the weights are read.
    with suppress_hf_logging(), suppress(Exception):
        return AutoConfig.from_pretrained(source.path, **_loading_kwargs(source))
    return None


def _build_processor(
    source: ModelRef, tokenizer: PreTrainedTokenizerBase, config: Any
) -> VisionProcessor:
    require("Showing pictures to a model", "PIL")
    from transformers import AutoImageProcessor

    token = tokenizer.convert_tokens_to_ids(_IMAGE_TOKEN)
    if token != config.image_token_id:
        raise ConfigError(
            f"The tokenizer of {source.name} does not have {_IMAGE_TOKEN} where the model looks "
            "for it. Name a folder whose tokenizer and config belong together."
        )
    try:
        with suppress_hf_logging():
            processor = AutoImageProcessor.from_pretrained(source.path, **_loading_kwargs(source))
    except Exception as error:
        words = describe_load_error(
            source.name, "image processor", error, hub_unreachable=source.hub_unreachable
        )
        raise ConfigError(words) from None
    never = {config.video_token_id} - {None}
    return VisionProcessor(
        processor,
        placeholder=_IMAGE_PLACEHOLDER,
        image_token_id=config.image_token_id,
        suppressed_ids=frozenset(never),
    )


def _check_template_keeps_images(
    source: ModelRef, eyes: VisionProcessor, tokenizer: PreTrainedTokenizerBase, dialect: ChatFormat
) -> None:
    """A picture must come out where it is shown: by the one who asks, and by a tool."""
    from ludus.policy.chat import incremental_prompt

    words = _PROBE_TEXT.format(mark=eyes.placeholder)
    asked = incremental_prompt.initial_prompt_ids(
        tokenizer, dialect, [{"role": "user", "content": words}], None
    )
    result = {"role": "tool", "content": words, "tool_call_id": "a"}
    told = incremental_prompt.continuation_ids(tokenizer, dialect, [result], None, turn_ended=True)
    if not asked.count(eyes.image_token_id) == told.count(eyes.image_token_id) == 1:
        raise ConfigError(
            f"The chat template of {source.name} leaves pictures out. Give it one that writes "
            "messages as they are."
        )
