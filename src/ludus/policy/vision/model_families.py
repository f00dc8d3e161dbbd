"""The vision-language models that Ludus supports.

All of them split an image into a grid of patches, write one placeholder token for each block of
patches, and compute its positions by rows and columns themselves (`get_rope_index`).
"""

from __future__ import annotations

from typing import Any

VISION_FAMILIES = {
    "qwen2_vl": "Qwen2-VL",
    "qwen2_5_vl": "Qwen2.5-VL",
    "qwen3_vl": "Qwen3-VL",
    "qwen3_vl_moe": "Qwen3-VL",
}
"""Names of the families by the `model_type` of their configs."""
SUPPORTED_FAMILIES = ", ".join(dict.fromkeys(VISION_FAMILIES.values()))

IMAGE_TOKEN = "<|image_pad|>"
IMAGE_PLACEHOLDER = f"<|vision_start|>{IMAGE_TOKEN}<|vision_end|>"
"""Stands for an image in the text of a prompt; the image token is in its middle."""


def supports_images(config: Any) -> bool:
    """Whether a model with this config is a supported vision-language model."""
    model_type = getattr(config, "model_type", None)
    return model_type in VISION_FAMILIES and hasattr(config, "image_token_id")
