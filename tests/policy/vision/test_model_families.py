"""Vision models are loaded with their image processors, and others are rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import student

from ludus.errors import ConfigError
from ludus.policy.load import Policy, load, load_model
from ludus.policy.vision.processor import VISION_FAMILIES
from policy import models
from policy.vision.tiny_vlms import SIGHT, saved, tokenizer_of


def load_policy(folder: Path) -> Policy:
    return load(str(folder), device="cpu", dtype="float32")


def load_error(folder: Path, **kwargs: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        load(str(folder), device="cpu", **kwargs)
    assert "\n" not in str(raised.value)
    return str(raised.value)


CHAT_FORMATS = {
    "qwen2_vl": "chatml",
    "qwen2_5_vl": "chatml",
    "qwen3_vl": "qwen3_vl",
    "qwen3_vl_moe": "qwen3_vl",
}


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_a_vision_model_is_loaded_with_its_processor(tmp_path: Path, family: str) -> None:
    policy = load_policy(saved(tmp_path, family))
    image, video = policy.tokenizer.convert_tokens_to_ids(["<|image_pad|>", "<|video_pad|>"])
    assert policy.vision is not None and policy.chat_format.name == CHAT_FORMATS[family]
    assert policy.vision.image_token_id == image
    assert policy.vision.suppressed_ids == {image, video}
    assert policy.vision.image_processor.patch_size == 4


def test_a_text_only_model_has_no_processor(tmp_path: Path) -> None:
    assert load_policy(models.saved(tmp_path)).vision is None


def test_the_image_processor_is_saved_beside_the_weights(tmp_path: Path) -> None:
    first = load_policy(saved(tmp_path / "first", "qwen2_vl"))
    assert first.vision is not None
    for part in (first.model, first.tokenizer):
        part.save_pretrained(tmp_path / "second")
    assert "image processor of" in load_error(tmp_path / "second")
    first.vision.image_processor.save_pretrained(tmp_path / "second")
    again = load_policy(tmp_path / "second")
    assert again.vision is not None
    assert again.vision.image_processor.to_dict() == first.vision.image_processor.to_dict()


def test_an_adapter_has_the_processor_of_its_base_model(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    base = saved(tmp_path / "base", "qwen2_vl")
    config: Any = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    plain = load_model(str(base), device="cpu", dtype="float32", allow_vision=True)
    before = plain.model.language_model.layers[0].self_attn.q_proj.weight.clone()
    adapter: Any = get_peft_model(plain, config)
    adapter.save_pretrained(tmp_path / "adapter")
    policy = load_policy(tmp_path / "adapter")
    assert policy.vision is not None
    assert not policy.model.model.language_model.layers[0].self_attn.q_proj.weight.equal(before)


def test_load_model_rejects_vision_models_by_default(tmp_path: Path) -> None:
    folder = str(saved(tmp_path, "qwen2_vl"))
    with pytest.raises(ConfigError, match="Qwen2VLForConditionalGeneration"):
        load_model(folder, device="cpu")


def test_an_unsupported_vision_model_is_rejected_with_the_supported_families(
    tmp_path: Path,
) -> None:
    from transformers import Gemma3Config

    student().save_pretrained(tmp_path)
    Gemma3Config(architectures=["Gemma3ForConditionalGeneration"]).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    message = load_error(tmp_path)
    assert "Gemma3ForConditionalGeneration" in message and "Qwen2.5-VL" in message


def test_image_marks_are_one_token_each() -> None:
    tokenizer = tokenizer_of("qwen2_vl")
    assert len(tokenizer("".join(SIGHT)).input_ids) == len(SIGHT)
