"""The vision-language models that Ludus supports, and how to build their image processors.

All of them split an image into a grid of patches, write one placeholder token for each block of
patches, and compute its positions by rows and columns themselves (`get_rope_index`).
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
"""Names of the families by the `model_type` of their configs."""
SUPPORTED_FAMILIES = ", ".join(dict.fromkeys(VISION_FAMILIES.values()))

_IMAGE_TOKEN = "<|image_pad|>"
_IMAGE_PLACEHOLDER = f"<|vision_start|>{_IMAGE_TOKEN}<|vision_end|>"


def supports_images(config: Any) -> bool:
    """Whether a model with this config is a supported vision-language model."""
    model_type = getattr(config, "model_type", None)
    return model_type in VISION_FAMILIES and hasattr(config, "image_token_id")


def build_vision_processor(
    ref: ModelRef, tokenizer: PreTrainedTokenizerBase, chat_format: ChatFormat
) -> VisionProcessor | None:
    """Build the processor of a vision-language model; None for a text-only model.

    Reads no weights.
    """
    from transformers import AutoConfig

    if ref.kind is ModelKind.ADAPTER:
        return build_vision_processor(resolve_base_model(ref), tokenizer, chat_format)
    config = None
    if ref.kind is not ModelKind.GGUF:
        # Loading the weights reports what is wrong with a config.
        with suppress_hf_logging(), suppress(Exception):
            config = AutoConfig.from_pretrained(ref.path, **_loading_kwargs(ref))
    if not supports_images(config):
        return None
    vision = _build_processor(ref, tokenizer, config)
    _check_template_keeps_images(ref, vision, tokenizer, chat_format)
    return vision


def load_vision_processor(name: str, tokenizer: PreTrainedTokenizerBase) -> VisionProcessor | None:
    """Build the processor of the model of that name, given its tokenizer; None if it has none."""
    from ludus.policy.chat.chat_format import find_chat_format_with_fallback

    try:
        chat_format = find_chat_format_with_fallback(tokenizer)
    except TemplateUnmarked:
        return None
    return build_vision_processor(resolve_model(name), tokenizer, chat_format)


def _loading_kwargs(ref: ModelRef) -> dict[str, Any]:
    local_files_only = ref.cache_only or ref.kind is not ModelKind.HUB
    return {"local_files_only": local_files_only, "trust_remote_code": False}


def _build_processor(
    ref: ModelRef, tokenizer: PreTrainedTokenizerBase, config: Any
) -> VisionProcessor:
    require("Using images", "PIL")
    from transformers import AutoImageProcessor

    if tokenizer.convert_tokens_to_ids(_IMAGE_TOKEN) != config.image_token_id:
        raise ConfigError(
            f"The id of {_IMAGE_TOKEN} in the tokenizer of {ref.name} is not the one in its "
            "config. Name a folder whose tokenizer and config belong together."
        )
    try:
        with suppress_hf_logging():
            image_processor = AutoImageProcessor.from_pretrained(ref.path, **_loading_kwargs(ref))
    except Exception as error:
        message = describe_load_error(
            ref.name, "image processor", error, hub_unreachable=ref.hub_unreachable
        )
        raise ConfigError(message) from None
    return VisionProcessor(
        image_processor,
        placeholder=_IMAGE_PLACEHOLDER,
        image_token_id=config.image_token_id,
        suppressed_ids=frozenset({config.video_token_id} - {None}),
    )


def _check_template_keeps_images(
    ref: ModelRef,
    vision: VisionProcessor,
    tokenizer: PreTrainedTokenizerBase,
    chat_format: ChatFormat,
) -> None:
    """Raise unless the template writes the placeholder in user messages and tool results."""
    from ludus.policy.chat import incremental_prompt

    text = f"See {vision.placeholder} there."
    user = {"role": "user", "content": text}
    result = {"role": "tool", "content": text, "tool_call_id": "a"}
    prompt = incremental_prompt.initial_prompt_ids(tokenizer, chat_format, [user], None)
    continuation = incremental_prompt.continuation_ids(
        tokenizer, chat_format, [result], None, turn_ended=True
    )
    token = vision.image_token_id
    if not prompt.count(token) == continuation.count(token) == 1:
        raise ConfigError(
            f"The chat template of {ref.name} leaves out images. Use one that writes the content "
            "of messages unchanged."
        )
