"""The model of `smollm2` behaves like the one that its GGUF file was made from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ludus.policy.load import load_model, load_tokenizer
from ludus.policy.smollm2 import convert
from policy.gguf_files import CHAT_TEMPLATE, MAX_LENGTH, gguf_file, smollm_tokenizer
from policy.models import tiny

SPACED = ["  17", "\n\n42", "17 plus  25", "What is  17?"]


def converted(folder: Path, *, quantized: bool = False, eos: int = 2, pad: int = 2) -> str:
    """The folder that a GGUF file is converted into."""
    convert(gguf_file(folder / "tiny.gguf", quantized=quantized, eos=eos, pad=pad), folder / "m")
    return str(folder / "m")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return converted(tmp_path_factory.mktemp("gguf"))


def test_the_weights_are_the_original_models_in_bfloat16(model_folder: str) -> None:
    loaded, original = load_model(model_folder, dtype="float32"), tiny(smollm_tokenizer())
    for weight, expected in zip(loaded.parameters(), original.parameters(), strict=True):
        assert torch.equal(weight, expected.bfloat16().float())


def test_quantized_weights_are_dequantized_and_trainable(tmp_path: Path) -> None:
    folder = converted(tmp_path, quantized=True)
    assert "quant" not in (Path(folder) / "config.json").read_text()
    assert "Lc100K" not in (Path(folder) / "config.json").read_text()
    loaded = load_model(folder, dtype="float32")
    ids = torch.arange(3, 40)[None]
    loaded(ids, labels=ids).loss.backward()
    assert all(weight.grad is not None for weight in loaded.parameters())
    assert {weight.dtype for weight in loaded.parameters()} == {torch.float32}


@pytest.mark.parametrize("text", SPACED)
def test_digits_are_tokenized_separately(model_folder: str, text: str) -> None:
    assert load_tokenizer(model_folder).tokenize(text) == smollm_tokenizer().tokenize(text)


@pytest.mark.parametrize(("eos", "pad"), [(2, 2), (0, 2), (0, 0)])
def test_eos_and_pad_tokens_differ(tmp_path: Path, eos: int, pad: int) -> None:
    """Whatever the file's metadata says."""
    folder = converted(tmp_path, eos=eos, pad=pad)
    tokenizer, model = load_tokenizer(folder), load_model(folder)
    for holder in (tokenizer, model.config, model.generation_config):
        assert (holder.eos_token_id, holder.pad_token_id) == (2, 0)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")


def test_generation_stops_at_the_end_of_turn_token(tmp_path: Path) -> None:
    model = load_model(converted(tmp_path, eos=0), dtype="float32")

    def force_tokens(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Token 50, token 50, end of turn, token 50, ..."""
        forced = torch.full_like(scores, float("-inf"))
        forced[:, 2 if ids.shape[1] == 6 else 50] = 0.0
        return forced

    out = model.generate(
        torch.tensor([[5, 6, 7, 8]]),
        max_new_tokens=9,
        do_sample=False,
        logits_processor=[force_tokens],
    )
    assert out[0, 4:].tolist() == [50, 50, 2]


def test_context_length_and_chat_template_are_read(model_folder: str) -> None:
    tokenizer = load_tokenizer(model_folder)
    assert tokenizer.model_max_length == MAX_LENGTH and tokenizer.chat_template == CHAT_TEMPLATE
    assert load_model(model_folder).config.max_position_embeddings == MAX_LENGTH


def test_the_saved_tokenizer_does_not_clean_up_spaces(model_folder: str) -> None:
    config = json.loads((Path(model_folder) / "tokenizer_config.json").read_text())
    assert config["clean_up_tokenization_spaces"] is False
    tokenizer = load_tokenizer(model_folder)
    assert tokenizer.decode(tokenizer.encode("17 , 42 .")) == "17 , 42 ."
