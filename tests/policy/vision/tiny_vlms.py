"""Tiny random vision models of each family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tiny_tokenizers import student, template_of
from transformers import Qwen2VLImageProcessorPil

SIGHT = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
TEMPLATES = {
    "qwen2_vl": "qwen2_5_vl",
    "qwen2_5_vl": "qwen2_5_vl",
    "qwen3_vl": "qwen3_vl",
    "qwen3_vl_moe": "qwen3_vl",
}
"""By family; the first two do not support tools and get a template of Ludus."""
CLASSES = {
    "qwen2_vl": "Qwen2VL",
    "qwen2_5_vl": "Qwen2_5_VL",
    "qwen3_vl": "Qwen3VL",
    "qwen3_vl_moe": "Qwen3VLMoe",
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
PATCH = 4


def tokenizer_of(family: str) -> Any:
    return student(template_of(TEMPLATES[family]), tokens=SIGHT)


def processor_of() -> Any:
    """Patches of 4x4, four of them per token; images are not resized."""
    make: Any = Qwen2VLImageProcessorPil
    return make(patch_size=PATCH, merge_size=2, min_pixels=64, max_pixels=4096)


def tiny(family: str, tokenizer: Any, *, seed: int = 0) -> Any:
    """Two text layers and one vision layer; the same weights for the same seed."""
    named: Any = transformers
    start, end, image, video = tokenizer.convert_tokens_to_ids(list(SIGHT))
    config = getattr(named, f"{CLASSES[family]}Config")(
        text_config=_text(tokenizer) | (EXPERTS if family.endswith("moe") else {}),
        vision_config=_vision(family),
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return getattr(named, f"{CLASSES[family]}ForConditionalGeneration")(config).eval()


def saved(folder: Path, family: str, *, seed: int = 0) -> Path:
    tokenizer = tokenizer_of(family)
    for part in (tiny(family, tokenizer, seed=seed), tokenizer, processor_of()):
        part.save_pretrained(folder)
    return folder


def _text(tokenizer: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [4, 2, 2],
        },
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": True,
    }


def _vision(family: str) -> dict[str, Any]:
    shared = {"depth": 1, "num_heads": 2, "patch_size": PATCH, "spatial_merge_size": 2}
    own: dict[str, dict[str, Any]] = {
        "qwen2_vl": {"embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2},
        "qwen2_5_vl": {
            "hidden_size": 32,
            "intermediate_size": 64,
            "out_hidden_size": 64,
            "window_size": 16,
            "fullatt_block_indexes": [0],
        },
        "qwen3_vl": {
            "hidden_size": 32,
            "intermediate_size": 64,
            "out_hidden_size": 64,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
    }
    return shared | own[family.removesuffix("_moe")]
