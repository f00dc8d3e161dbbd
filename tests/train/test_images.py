"""SFT and DPO on rows with images."""

from __future__ import annotations

import json
import pickle
from io import BytesIO
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from policy.models import saved as saved_text_model
from policy.vision.image_env import GALLERY, picture
from policy.vision.tiny_vlms import processor_of, saved

from ludus import dpo, sft
from ludus.errors import ConfigError
from ludus.policy.load import load, load_model, load_tokenizer
from ludus.policy.vision.processor import VisionProcessor, load_vision_processor
from ludus.train import Lora
from ludus.train.data.batches import ImageCollator, PairCollator
from ludus.train.data.rows import IGNORE_INDEX
from ludus.train.data.tokenization import RowTokenizer
from ludus.train.data.training_data import JsonlRows
from train.image_rows import image_rows
from train.sample_rows import sft_row, write_jsonl
from train.short_runs import RecordingProgress, read_curve, same_curve, train_config


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(tmp_path_factory.mktemp("base"), "qwen2_5_vl"))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_rows(tmp_path_factory.mktemp("rows"), "sft")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_rows(tmp_path_factory.mktemp("pairs"), "dpo")


def tokens(data: Path, base: str, method: Any) -> tuple[VisionProcessor, list[dict[str, Any]]]:
    tokenizer = load_tokenizer(base)
    vision = load_vision_processor(base)
    assert vision is not None
    row_tokenizer = RowTokenizer(
        tokenizer, load(base, device="cpu").chat_format.template, method, vision
    )
    batch = list(JsonlRows(data / "train.jsonl").rows())
    tokenized = row_tokenizer(batch)
    assert not tokenized.template_errors
    return vision, tokenized.table.to_pylist()


def vision_weights(folder: str | Path) -> dict[str, Any]:
    model = load_model(str(folder), device="cpu", dtype="float32", allow_vision=True)
    return {name: each.clone() for name, each in model.model.visual.state_dict().items()}


def test_logits_equal_those_with_the_processor_of_transformers(rows: Path, base: str) -> None:
    from PIL import Image
    from transformers import Qwen2_5_VLForConditionalGeneration

    vision, tokenized = tokens(rows, base, "sft")
    tokenizer = load_tokenizer(base)
    model: Any = Qwen2_5_VLForConditionalGeneration.from_pretrained(base).eval()
    batch = ImageCollator(tokenizer.pad_token_id, vision)(tokenized)
    with torch.no_grad():
        logits = model(**{name: each for name, each in batch.items() if name != "labels"}).logits
    for at, row in enumerate(tokenized):
        urls = row["row_images"]
        assert len(urls) == 2, "the last image comes after the last reply"
        images = [Image.open(BytesIO(decode_url(url))) for url in urls]
        processed = processor_of()(images=images, return_tensors="pt")
        sizes = (processed["image_grid_thw"].prod(dim=1) // 4).tolist()
        text, pad = tokenizer.decode(row["input_ids"]), "<|image_pad|>"
        for size in sizes:
            assert pad * size in text
        assert row["input_ids"].count(vision.image_token_id) == sum(sizes)
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
        with torch.no_grad():
            kinds = (ids == vision.image_token_id).long()
            plain = model(input_ids=ids, mm_token_type_ids=kinds, **processed).logits[0]
        assert torch.allclose(logits[at, : len(plain)], plain, atol=1e-4)


def decode_url(url: str) -> bytes:
    import base64

    return base64.b64decode(url.partition(",")[2])


def test_the_loss_is_on_the_assistants_tokens_and_not_on_images(rows: Path, base: str) -> None:
    vision, tokenized = tokens(rows, base, "sft")
    tokenizer = load_tokenizer(base)
    for row in tokenized:
        assert vision.image_token_id not in row["labels"]
        text = tokenizer.decode([label for label in row["labels"] if label != IGNORE_INDEX])
        assert text.count("<tool_call>") == 2 and "Behind it" not in text


def test_images_of_a_pair_follow_the_order_of_its_batch(pairs: Path, base: str) -> None:
    vision, tokenized = tokens(pairs, base, "dpo")
    batch = PairCollator(load_tokenizer(base).pad_token_id, vision)(tokenized)
    urls = [
        url
        for column in ("chosen_images", "rejected_images")
        for row in tokenized
        for url in row[column]
    ]
    assert batch["image_grid_thw"].tolist() == [
        list(each.grid_thw) for each in vision.process_urls(urls)
    ]
    sizes = [int(each.prod()) // 4 for each in batch["image_grid_thw"]]
    assert int((batch["input_ids"] == vision.image_token_id).sum()) == sum(sizes)
    assert torch.equal(
        batch["mm_token_type_ids"].bool(), batch["input_ids"] == vision.image_token_id
    )


def test_a_vision_model_learns_from_images_and_resumes(
    tmp_path: Path, rows: Path, base: str
) -> None:
    config = train_config(epochs=None, steps=6, batch_size=1, learning_rate=1e-2)
    out, one = tmp_path / "out", tmp_path / "one"
    assert (
        sft(rows, base, out, config, progress=RecordingProgress(stop_after=3)).stopped
        == "interrupted"
    )
    assert sft(rows, base, out, config).resumed_from == 3
    sft(rows, base, one, config)
    assert same_curve(read_curve(out), read_curve(one), lambda x: pytest.approx(x, abs=1e-6))
    lines = read_curve(out)
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.5
    before, after = vision_weights(base), vision_weights(out)
    assert all(not torch.equal(before[name], after[name]) for name in before if "weight" in name)
    assert load(str(out), device="cpu").vision is not None
    card = (out / "README.md").read_text()
    assert 'pipeline_tag: "image-text-to-text"' in card and "AutoModelForCausalLM" not in card
    assert f"ludus eval {GALLERY} " in card


@pytest.mark.parametrize("lora", [None, Lora(rank=4)], ids=["whole", "adapter"])
def test_dpo_works_on_pairs_with_images(
    tmp_path: Path, pairs: Path, base: str, lora: Lora | None
) -> None:
    out = tmp_path / "out"
    dpo(pairs, base, out, train_config(epochs=3, learning_rate=1e-3, lora=lora))
    lines = read_curve(out)
    assert lines[0]["loss"] == pytest.approx(log(2), abs=1e-5)
    assert lines[-1]["loss"] < lines[0]["loss"] and lines[-1]["rewards/margins"] > 0
    before, after = vision_weights(base), vision_weights(out)
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_rows_with_and_without_images_share_a_batch(tmp_path: Path, rows: Path, base: str) -> None:
    with_images = [json.loads(line) for line in (rows / "train.jsonl").read_text().splitlines()]
    write_jsonl(tmp_path / "d" / "train.jsonl", [sft_row(1), *with_images, sft_row(2)])
    write_jsonl(tmp_path / "d" / "test.jsonl", [with_images[0], sft_row(3)])
    out = tmp_path / "out"
    assert sft(tmp_path / "d", base, out, train_config(batch_size=3)).steps == 2
    *steps, test = read_curve(out)
    assert all(line["grad_norm"] > 0 for line in steps) and test["eval_loss"] > 0


def test_truncated_rows_lose_their_last_images(tmp_path: Path, rows: Path, base: str) -> None:
    vision, tokenized = tokens(rows, base, "sft")
    ids = tokenized[0]["input_ids"]
    second = len(ids) - ids[::-1].index(vision.image_token_id)
    config = train_config(max_length=second - 2, learning_rate=1e-2)
    assert sft(rows, base, tmp_path / "out", config).steps == 1
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert record["data"]["truncated"] == 2


def test_images_raise_for_a_text_model(tmp_path: Path, rows: Path) -> None:
    text_model = str(saved_text_model(tmp_path / "text"))
    with pytest.raises(ConfigError, match=r"train\.jsonl:1 .*images"):
        sft(rows, text_model, tmp_path / "out", train_config())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"type": "image"}, "data URL"),
        ({"type": "audio"}, "neither text nor an image"),
        (
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            "URL",
        ),
    ],
)
def test_invalid_content_parts_raise_with_the_location(
    tmp_path: Path, base: str, part: dict[str, Any], reason: str
) -> None:
    messages = [{"role": "user", "content": [part]}, {"role": "assistant", "content": "I see."}]
    data = write_jsonl(tmp_path / "d.jsonl", [{"messages": messages}])
    with pytest.raises(ConfigError, match=rf"d\.jsonl:1.*{reason}"):
        sft(data, base, tmp_path / "out", train_config())


@pytest.mark.parametrize(("width", "height"), [(16, 16), (24, 16), (100, 30), (3, 200)])
def test_the_token_count_of_an_image_is_known_from_its_size(width: int, height: int) -> None:
    vision = VisionProcessor(processor_of(), image_token_id=7)
    image = picture(width, height, "red")
    url = f"data:{image.mime_type};base64,{image.data}"
    assert vision.num_image_tokens(url) == vision.process_urls([url])[0].num_tokens


def test_a_vision_processor_can_be_pickled() -> None:
    vision = VisionProcessor(processor_of(), image_token_id=7)
    copy = pickle.loads(pickle.dumps(vision))
    assert (copy.image_token_id, copy.suppressed_ids) == (7, {7})
    assert copy.process_urls([]) == ()
