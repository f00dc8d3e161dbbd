"""A model out of a GGUF file reads, stops and saves as the one that the file was made from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from ludus.errors import ConfigError
from ludus.policy.load import load_model
from ludus.policy.tokenizer import load_tokenizer
from policy.gguf_files import CHAT, LONGEST, gguf_file, speller
from policy.models import tiny

SPACED = ["  17", "\n\n42", "17 plus  25", "What is  17?"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_file(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_its_weights_are_those_that_went_into_it(file: Path) -> None:
    ids = torch.arange(3, 40)[None]
    loaded = load_model(str(file), dtype="float32")
    with torch.no_grad():
        assert torch.allclose(loaded(ids).logits, tiny(speller())(ids).logits, atol=1e-5)


def test_packed_weights_are_unpacked_and_can_be_trained(tmp_path: Path) -> None:
    loaded = load_model(str(gguf_file(tmp_path / "q.gguf", quantized=True)), dtype="float32")
    ids = torch.arange(3, 40)[None]
    loaded(ids, labels=ids).loss.backward()
    assert all(weight.grad is not None for weight in loaded.parameters())
    assert {weight.dtype for weight in loaded.parameters()} == {torch.float32}


@pytest.mark.parametrize("quantized", [False, True])
def test_it_can_be_saved_and_read_again(tmp_path: Path, quantized: bool) -> None:
    loaded = load_model(str(gguf_file(tmp_path / "q.gguf", quantized=quantized)))
    loaded.save_pretrained(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert "quant" not in (tmp_path / "saved" / "config.json").read_text()
    assert "Lc100K" not in (tmp_path / "saved" / "config.json").read_text()
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.parameters(), again.parameters(), strict=True)
    )


@pytest.mark.parametrize("text", SPACED)
def test_digits_stand_alone_where_the_vocabulary_was_made_so(file: Path, text: str) -> None:
    assert load_tokenizer(str(file)).tokenize(text) == speller().tokenize(text)


def test_other_vocabularies_keep_the_converters_splitting(tmp_path: Path, file: Path) -> None:
    other = load_tokenizer(str(gguf_file(tmp_path / "other.gguf", pre="gpt-2")))
    assert other.tokenize("  17") != load_tokenizer(str(file)).tokenize("  17")


@pytest.mark.parametrize(("eos", "pad"), [(2, 2), (0, 2), (0, 0)])
def test_it_ends_its_turn_and_pads_with_something_else(tmp_path: Path, eos: int, pad: int) -> None:
    """Whatever the file says."""
    file = str(gguf_file(tmp_path / "said.gguf", eos=eos, pad=pad))
    tokenizer, model = load_tokenizer(file), load_model(file)
    for holder in (tokenizer, model.config, model.generation_config):
        assert (holder.eos_token_id, holder.pad_token_id) == (2, 0)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")


def test_generation_stops_at_the_end_of_the_turn(tmp_path: Path) -> None:
    model = load_model(str(gguf_file(tmp_path / "said.gguf", eos=0)), dtype="float32")

    def insist(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Word, word, end of turn, word, ..."""
        wanted = torch.full_like(scores, float("-inf"))
        wanted[:, 2 if ids.shape[1] == 6 else 50] = 0.0
        return wanted

    out = model.generate(
        torch.tensor([[5, 6, 7, 8]]), max_new_tokens=9, do_sample=False, logits_processor=[insist]
    )
    assert out[0, 4:].tolist() == [50, 50, 2]


def test_it_knows_how_much_it_can_read_and_its_own_template(file: Path) -> None:
    tokenizer = load_tokenizer(str(file))
    assert tokenizer.model_max_length == LONGEST and tokenizer.chat_template == CHAT
    assert load_model(str(file)).config.max_position_embeddings == LONGEST


def test_nothing_is_said_while_it_is_read(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_model(str(file))
    load_tokenizer(str(file))
    assert capfd.readouterr() == ("", "")


def test_a_tokenizer_out_of_it_is_saved_as_one_that_leaves_spaces_alone(
    file: Path, tmp_path: Path
) -> None:
    load_tokenizer(str(file)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["clean_up_tokenization_spaces"] is False
    again = load_tokenizer(str(tmp_path))
    assert again.decode(again.encode("17 , 42 .")) == "17 , 42 ."


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no such file at all" * 100])
def test_a_damaged_file_is_one_line(tmp_path: Path, content: bytes) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(content)
    for load, part in ((load_model, "weights"), (load_tokenizer, "tokenizer")):
        with pytest.raises(ConfigError, match=f"^The {part} of .* cannot be read: .") as caught:
            load(str(damaged))
        assert "\n" not in str(caught.value)


def test_a_file_that_was_cut_off_is_one_line(tmp_path: Path, file: Path) -> None:
    whole = file.read_bytes()
    (tmp_path / "half.gguf").write_bytes(whole[: len(whole) - 20_000])
    with pytest.raises(ConfigError, match=r"^The weights of .* cannot be read: ."):
        load_model(str(tmp_path / "half.gguf"))
