"""Models that see are loaded with their eyes, and others are refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from students import student, template_of

from ludus.errors import ConfigError
from ludus.policy.load import Policy, load, load_model
from ludus.policy.vision.model_families import VISION_FAMILIES
from policy import models
from policy.vision.tiny_vlms import SIGHT, processor_of, saved, tiny, tokenizer_of


def loaded(folder: Path) -> Policy:
    return load(str(folder), device="cpu", dtype="float32")


def refusal(folder: Path, **more: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        load(str(folder), device="cpu", **more)
    assert "\n" not in str(raised.value)
    return str(raised.value)


DIALECTS = {
    "qwen2_vl": "chatml",
    "qwen2_5_vl": "chatml",
    "qwen3_vl": "qwen3_vl",
    "qwen3_vl_moe": "qwen3_vl",
}


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_a_model_that_sees_is_loaded_with_its_eyes(tmp_path: Path, family: str) -> None:
    policy = loaded(saved(tmp_path, family))
    image, video = policy.tokenizer.convert_tokens_to_ids(["<|image_pad|>", "<|video_pad|>"])
    assert policy.vision is not None and policy.chat_format.name == DIALECTS[family]
    assert (policy.vision.image_token_id, policy.vision.suppressed_ids) == (
        image,
        frozenset({image, video}),
    )
    assert policy.vision.image_processor.patch_size == 4


def test_a_model_that_reads_only_text_has_no_eyes(tmp_path: Path) -> None:
    assert loaded(models.saved(tmp_path)).vision is None


def test_eyes_are_saved_beside_weights(tmp_path: Path) -> None:
    first = loaded(saved(tmp_path / "first", "qwen2_vl"))
    assert first.vision is not None
    for part in (first.model, first.tokenizer):
        part.save_pretrained(tmp_path / "second")
    assert "image processor of" in refusal(tmp_path / "second")
    first.vision.save(tmp_path / "second")
    again = loaded(tmp_path / "second")
    assert again.vision is not None
    assert again.vision.image_processor.to_dict() == first.vision.image_processor.to_dict()


def test_an_adapter_sees_with_the_eyes_of_what_it_goes_over(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    base = saved(tmp_path / "base", "qwen2_vl")
    config: Any = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    plain = load_model(str(base), device="cpu", dtype="float32", allow_vision=True)
    before = plain.model.language_model.layers[0].self_attn.q_proj.weight.clone()
    adapter: Any = get_peft_model(plain, config)
    adapter.save_pretrained(tmp_path / "adapter")
    policy = loaded(tmp_path / "adapter")
    assert policy.vision is not None
    assert not policy.model.model.language_model.layers[0].self_attn.q_proj.weight.equal(before)


def test_who_cannot_deal_with_pictures_is_not_given_a_model_that_sees(tmp_path: Path) -> None:
    folder = str(saved(tmp_path, "qwen2_vl"))
    with pytest.raises(
        ConfigError, match="a Qwen2VLForConditionalGeneration, which does not write"
    ):
        load_model(folder, device="cpu")


def test_eyes_that_are_not_known_are_refused_with_those_that_are(tmp_path: Path) -> None:
    from transformers import Gemma3Config

    student().save_pretrained(tmp_path)
    Gemma3Config(architectures=["Gemma3ForConditionalGeneration"]).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    assert refusal(tmp_path) == (
        f"{tmp_path} is a Gemma3ForConditionalGeneration, which does not write text alone. Name a "
        "language model (a ...ForCausalLM, or one that sees: Qwen2-VL, Qwen2.5-VL, Qwen3-VL)."
    )


def test_a_tokenizer_of_another_model_is_one_line(tmp_path: Path) -> None:
    saved(tmp_path, "qwen2_vl")
    config = json.loads((tmp_path / "config.json").read_text())
    config["image_token_id"] += 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "does not have <|image_pad|> where the model looks for it" in refusal(tmp_path)


def test_a_template_that_leaves_pictures_out_is_one_line(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("qwen3_vl")
    marked = template_of("qwen3_vl_training")
    tokenizer.chat_template = marked.replace(
        "{{- message.content }}", "{{- message.content | replace('<|image_pad|>', '') }}"
    )
    for part in (tiny("qwen3_vl", tokenizer), tokenizer, processor_of()):
        part.save_pretrained(tmp_path)
    assert "leaves pictures out" in refusal(tmp_path)


def test_the_marks_of_pictures_are_one_token_each() -> None:
    tokenizer = tokenizer_of("qwen2_vl")
    assert len(tokenizer("".join(SIGHT)).input_ids) == len(SIGHT)
