"""Models from GGUF files behave like the models that the files were made from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from ludus.errors import ConfigError
from ludus.policy.load import load_model, load_tokenizer
from policy.gguf_files import CHAT_TEMPLATE, MAX_LENGTH, gguf_file, smollm_tokenizer
from policy.models import tiny

SPACED = ["  17", "\n\n42", "17 plus  25", "What is  17?"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_file(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_the_weights_are_those_of_the_original_model(file: Path) -> None:
    ids = torch.arange(3, 40)[None]
    loaded = load_model(str(file), dtype="float32")
    with torch.no_grad():
        assert torch.allclose(loaded(ids).logits, tiny(smollm_tokenizer())(ids).logits, atol=1e-5)


def test_quantized_weights_are_dequantized_and_trainable(tmp_path: Path) -> None:
    loaded = load_model(str(gguf_file(tmp_path / "q.gguf", quantized=True)), dtype="float32")
    ids = torch.arange(3, 40)[None]
    loaded(ids, labels=ids).loss.backward()
    assert all(weight.grad is not None for weight in loaded.parameters())
    assert {weight.dtype for weight in loaded.parameters()} == {torch.float32}


@pytest.mark.parametrize("quantized", [False, True])
def test_a_loaded_model_can_be_saved(tmp_path: Path, quantized: bool) -> None:
    loaded = load_model(str(gguf_file(tmp_path / "q.gguf", quantized=quantized)))
    loaded.save_pretrained(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert "quant" not in (tmp_path / "saved" / "config.json").read_text()
    assert "Lc100K" not in (tmp_path / "saved" / "config.json").read_text()
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.parameters(), again.parameters(), strict=True)
    )


@pytest.mark.parametrize("text", SPACED)
def test_smollm_tokenizes_digits_separately(file: Path, text: str) -> None:
    assert load_tokenizer(str(file)).tokenize(text) == smollm_tokenizer().tokenize(text)


def test_other_pre_tokenizers_are_left_to_the_converter(tmp_path: Path, file: Path) -> None:
    other = load_tokenizer(str(gguf_file(tmp_path / "other.gguf", pre="gpt-2")))
    assert other.tokenize("  17") != load_tokenizer(str(file)).tokenize("  17")


@pytest.mark.parametrize(("eos", "pad"), [(2, 2), (0, 2), (0, 0)])
def test_smollm_has_different_eos_and_pad_tokens(tmp_path: Path, eos: int, pad: int) -> None:
    """Whatever the file's metadata says."""
    file = str(gguf_file(tmp_path / "said.gguf", eos=eos, pad=pad))
    tokenizer, model = load_tokenizer(file), load_model(file)
    for holder in (tokenizer, model.config, model.generation_config):
        assert (holder.eos_token_id, holder.pad_token_id) == (2, 0)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")


def test_generation_stops_at_the_end_of_turn_token(tmp_path: Path) -> None:
    model = load_model(str(gguf_file(tmp_path / "said.gguf", eos=0)), dtype="float32")

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


def test_context_length_and_chat_template_are_read(file: Path) -> None:
    tokenizer = load_tokenizer(str(file))
    assert tokenizer.model_max_length == MAX_LENGTH and tokenizer.chat_template == CHAT_TEMPLATE
    assert load_model(str(file)).config.max_position_embeddings == MAX_LENGTH


def test_loading_prints_nothing(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_model(str(file))
    load_tokenizer(str(file))
    assert capfd.readouterr() == ("", "")


def test_a_saved_tokenizer_does_not_clean_up_spaces(file: Path, tmp_path: Path) -> None:
    load_tokenizer(str(file)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["clean_up_tokenization_spaces"] is False
    again = load_tokenizer(str(tmp_path))
    assert again.decode(again.encode("17 , 42 .")) == "17 , 42 ."


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no such file at all" * 100])
def test_a_damaged_file_is_rejected(tmp_path: Path, content: bytes) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(content)
    for load, part in ((load_model, "weights"), (load_tokenizer, "tokenizer")):
        with pytest.raises(ConfigError, match=part) as caught:
            load(str(damaged))
        assert "\n" not in str(caught.value)


def test_a_truncated_file_is_rejected(tmp_path: Path, file: Path) -> None:
    whole = file.read_bytes()
    (tmp_path / "half.gguf").write_bytes(whole[: len(whole) - 20_000])
    with pytest.raises(ConfigError, match="weights"):
        load_model(str(tmp_path / "half.gguf"))
