"""SFT and DPO on rows with images, for models that see."""

from __future__ import annotations

import json
from io import BytesIO
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from policy.models import saved as saved_without_eyes
from policy.vision.image_env import GALLERY, picture
from policy.vision.tiny_vlms import processor_of, saved

from ludus import dpo, sft
from ludus.errors import ConfigError
from ludus.policy.load import load, load_model
from ludus.policy.tokenizer import load_tokenizer
from ludus.policy.vision.model_families import load_vision_processor
from ludus.policy.vision.processor import VisionProcessor
from ludus.train import Lora
from ludus.train.data.filtering import truncation_point
from ludus.train.data.loading import JsonlRows
from ludus.train.data.tokenization import IGNORE_INDEX, RowTokenizer
from ludus.train.trl_trainers import ImageCollator, PairCollator
from train.exhibits import image_rows
from train.lessons import Seen, curve, quick, same, sft_row, write


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(tmp_path_factory.mktemp("base"), "qwen2_5_vl"))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory, base: str) -> Path:
    return image_rows(tmp_path_factory.mktemp("rows"), "sft", student=base)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_rows(tmp_path_factory.mktemp("pairs"), "dpo")


def tokens(data: Path, base: str, method: Any) -> tuple[VisionProcessor, list[dict[str, Any]]]:
    tokenizer = load_tokenizer(base)
    eyes = load_vision_processor(base, tokenizer)
    assert eyes is not None
    maker = RowTokenizer(tokenizer, load(base, device="cpu").chat_format.template, method, eyes)
    (batch,) = JsonlRows(data / "train.jsonl").batches(100)
    made = maker(batch)
    assert not made.template_errors
    return eyes, made.table.to_pylist()


def vision_weights(folder: str | Path) -> dict[str, Any]:
    model = load_model(str(folder), device="cpu", dtype="float32", allow_vision=True)
    return {name: each.clone() for name, each in model.model.visual.state_dict().items()}


def test_a_row_is_what_transformers_own_processor_makes_of_it(rows: Path, base: str) -> None:
    from PIL import Image
    from transformers import Qwen2_5_VLForConditionalGeneration

    eyes, made = tokens(rows, base, "sft")
    tokenizer = load_tokenizer(base)
    model: Any = Qwen2_5_VLForConditionalGeneration.from_pretrained(base).eval()
    batch = ImageCollator(tokenizer.pad_token_id, eyes)(made)
    with torch.no_grad():
        logits = model(**{name: each for name, each in batch.items() if name != "labels"}).logits
    for at, row in enumerate(made):
        urls = row["row_images"]
        assert len(urls) == 2, "the last picture came after the last word"
        images = [Image.open(BytesIO(_decoded(url))) for url in urls]
        seen = processor_of()(images=images, return_tensors="pt")
        sizes = (seen["image_grid_thw"].prod(dim=1) // 4).tolist()
        text, pad = tokenizer.decode(row["input_ids"]), "<|image_pad|>"
        for size in sizes:
            assert pad * size in text
        assert row["input_ids"].count(eyes.image_token_id) == sum(sizes)
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
        with torch.no_grad():
            kinds = (ids == eyes.image_token_id).long()
            plain = model(input_ids=ids, mm_token_type_ids=kinds, **seen).logits[0]
        assert torch.allclose(logits[at, : len(plain)], plain, atol=1e-4)


def _decoded(url: str) -> bytes:
    import base64

    return base64.b64decode(url.partition(",")[2])


def test_loss_is_on_the_assistants_words_and_on_no_part_of_an_image(rows: Path, base: str) -> None:
    eyes, made = tokens(rows, base, "sft")
    tokenizer = load_tokenizer(base)
    for row in made:
        assert eyes.image_token_id not in row["labels"]
        learned = tokenizer.decode([label for label in row["labels"] if label != IGNORE_INDEX])
        assert learned.count("<tool_call>") == 2 and "Behind it" not in learned
    measured = json.loads((rows / "curation.json").read_text())["report"]["lengths"]
    # Curating counts the words after the last reply as well: a picture of 4 tokens and its frame.
    assert 4 < measured["max"] - max(len(row["input_ids"]) for row in made) < 40


def test_images_of_a_pair_follow_the_order_of_its_batch(pairs: Path, base: str) -> None:
    eyes, made = tokens(pairs, base, "dpo")
    batch = PairCollator(load_tokenizer(base).pad_token_id, eyes)(made)
    urls = [
        url
        for column in ("chosen_images", "rejected_images")
        for row in made
        for url in row[column]
    ]
    assert batch["image_grid_thw"].tolist() == [
        list(each.grid_thw) for each in eyes.process_urls(urls)
    ]
    sizes = [int(each.prod()) // 4 for each in batch["image_grid_thw"]]
    assert int((batch["input_ids"] == eyes.image_token_id).sum()) == sum(sizes)
    assert torch.equal(batch["mm_token_type_ids"].bool(), batch["input_ids"] == eyes.image_token_id)


def test_a_model_that_sees_learns_from_images_and_goes_on_where_it_was_stopped(
    tmp_path: Path, rows: Path, base: str
) -> None:
    settings = quick(epochs=None, steps=6, batch_size=1, learning_rate=1e-2)
    out, one = tmp_path / "out", tmp_path / "one"
    assert sft(rows, base, out, settings, progress=Seen(stop_after=3)).stopped == "interrupted"
    assert sft(rows, base, out, settings).resumed_from == 3
    sft(rows, base, one, settings)
    assert same(curve(out), curve(one), lambda x: pytest.approx(x, abs=1e-6))
    lines = curve(out)
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.5
    before, after = vision_weights(base), vision_weights(out)
    assert all(not torch.equal(before[name], after[name]) for name in before if "weight" in name)
    assert load(str(out), device="cpu").vision is not None
    card = (out / "README.md").read_text()
    assert 'pipeline_tag: "image-text-to-text"' in card and "AutoModelForCausalLM" not in card
    assert f"ludus eval {GALLERY} " in card


@pytest.mark.parametrize("lora", [None, Lora(rank=4)], ids=["whole", "adapter"])
def test_pairs_with_images_are_compared_with_the_base(
    tmp_path: Path, pairs: Path, base: str, lora: Lora | None
) -> None:
    out = tmp_path / "out"
    dpo(pairs, base, out, quick(epochs=3, learning_rate=1e-3, lora=lora))
    lines = curve(out)
    assert lines[0]["loss"] == pytest.approx(log(2), abs=1e-5)
    assert lines[-1]["loss"] < lines[0]["loss"] and lines[-1]["rewards/margins"] > 0
    before, after = vision_weights(base), vision_weights(out)
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_rows_with_and_without_images_share_a_batch(tmp_path: Path, rows: Path, base: str) -> None:
    with_images = [json.loads(line) for line in (rows / "train.jsonl").read_text().splitlines()]
    write(tmp_path / "d" / "train.jsonl", [sft_row(1), *with_images, sft_row(2)])
    write(tmp_path / "d" / "test.jsonl", [with_images[0], sft_row(3)])
    out = tmp_path / "out"
    assert sft(tmp_path / "d", base, out, quick(batch_size=3)).steps == 2
    *steps, test = curve(out)
    assert all(line["grad_norm"] > 0 for line in steps) and test["eval_loss"] > 0


@pytest.mark.parametrize(
    ("ids", "max_length", "end", "images"),
    [
        ([1, 7, 7, 2, 7, 7, 3], 7, 7, 2),
        ([1, 7, 7, 2, 7, 7, 3], 6, 6, 2),
        ([1, 7, 7, 2, 7, 7, 3], 5, 4, 1),
        ([1, 7, 7, 2, 7, 7, 3], 4, 4, 1),
        ([1, 7, 7, 2, 7, 7, 3], 2, 1, 0),
        ([1, 2, 3], 2, 2, 0),
    ],
)
def test_a_row_is_not_cut_within_an_image(
    ids: list[int], max_length: int, end: int, images: int
) -> None:
    assert truncation_point(ids, max_length, image_token=7) == (end, images)


def test_rows_that_are_cut_lose_their_last_images(tmp_path: Path, rows: Path, base: str) -> None:
    eyes, made = tokens(rows, base, "sft")
    ids = made[0]["input_ids"]
    second = len(ids) - ids[::-1].index(eyes.image_token_id)
    settings = quick(max_length=second - 2, learning_rate=1e-2)
    assert sft(rows, base, tmp_path / "out", settings).steps == 1
    told = json.loads((tmp_path / "out" / "training.json").read_text())
    assert told["data"]["cut"] == 2


def test_a_model_that_reads_only_text_refuses_images(tmp_path: Path, rows: Path) -> None:
    blind = str(saved_without_eyes(tmp_path / "blind"))
    with pytest.raises(ConfigError, match=r"train\.jsonl:1 shows images, .* Qwen2\.5-VL"):
        sft(rows, blind, tmp_path / "out", quick())
    assert not (tmp_path / "out").exists()


def test_packing_is_refused_for_a_model_that_sees(tmp_path: Path, rows: Path, base: str) -> None:
    with pytest.raises(ConfigError, match="--packing"):
        sft(rows, base, tmp_path / "out", quick(packing=True))


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"type": "image"}, "an image without a data URL"),
        ({"type": "audio"}, "neither text nor an image"),
        (
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
            "does not fetch",
        ),
        ({"type": "text", "text": "<|image_pad|>"}, "0 images"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_its_place(
    tmp_path: Path, base: str, part: dict[str, Any], said: str
) -> None:
    talk = [{"role": "user", "content": [part]}, {"role": "assistant", "content": "I see."}]
    data = write(tmp_path / "d.jsonl", [{"messages": talk}])
    with pytest.raises(ConfigError, match=rf"d\.jsonl:1.*{said}"):
        sft(data, base, tmp_path / "out", quick())


@pytest.mark.parametrize(("width", "height"), [(16, 16), (24, 16), (100, 30), (3, 200)])
def test_the_size_of_an_image_is_known_without_its_patches(width: int, height: int) -> None:
    eyes = VisionProcessor(processor_of(), placeholder="<|image_pad|>", image_token_id=7)
    shown = picture(width, height, "red")
    url = f"data:{shown.mime_type};base64,{shown.data}"
    assert eyes.num_image_tokens(url) == eyes.process_urls([url])[0].num_tokens


def test_eyes_can_be_handed_to_another_process() -> None:
    import pickle

    eyes = VisionProcessor(processor_of(), placeholder="<|image_pad|>", image_token_id=7)
    again = pickle.loads(pickle.dumps(eyes))
    assert (again.mark, again.token, again.never) == (
        eyes.placeholder,
        eyes.image_token_id,
        eyes.suppressed_ids,
    )
    assert again.look_at([]) == ()
