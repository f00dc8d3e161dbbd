"""Text of tokens as they come: characters of several tokens, and stop sequences."""

from __future__ import annotations

import pytest
from tiny_tokenizers import of_family

from ludus.serve.model.text_stream import TextStream

TEXT = "The answer is 42 — żółw 🐢, because seven and five make twelve."


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_pieces_add_up_and_characters_are_whole(size: int) -> None:
    tokenizer = of_family("qwen3")
    ids = tokenizer.encode(TEXT)
    stream = TextStream(tokenizer)
    pieces = [
        stream.feed(ids[start : start + size], [0.0] * len(ids[start : start + size]))
        for start in range(0, len(ids), size)
    ]
    pieces.append(stream.finish())
    assert "".join(pieces) == TEXT == stream.text
    assert not any("�" in piece for piece in pieces)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("stop", ["because", "🐢", ", b", "twelve."])
def test_a_stop_sequence_cuts_text_and_tokens(size: int, stop: str) -> None:
    tokenizer = of_family("qwen3")
    ids = tokenizer.encode(TEXT)
    stream = TextStream(tokenizer, stop=["nowhere", stop])
    pieces = []
    for start in range(0, len(ids), size):
        part = ids[start : start + size]
        pieces.append(stream.feed(part, [-1.0] * len(part)))
    pieces.append(stream.finish())
    assert stream.reached_stop
    assert "".join(pieces) == stream.text == TEXT[: TEXT.index(stop)]
    kept = tokenizer.decode(stream.ids)
    assert stop in kept and stop not in tokenizer.decode(stream.ids[:-1])
    assert len(stream.logprobs) == len(stream.ids)


def test_what_a_stop_sequence_may_begin_with_is_held_back() -> None:
    tokenizer = of_family("qwen3")
    stream = TextStream(tokenizer, stop=["aab", "b"])
    pieces = [stream.feed(tokenizer.encode(char), [0.0]) for char in "xaaac"]
    assert pieces == ["", "", "x", "a", "a"]
    assert stream.finish() == "ac"
    stream = TextStream(tokenizer, stop=["aab", "b"])
    pieces = [stream.feed(tokenizer.encode(char), [0.0]) for char in "xaaab"]
    assert "".join(pieces) == "xa" and stream.reached_stop


def test_stop_tokens_are_not_text() -> None:
    tokenizer = of_family("qwen3")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    stream = TextStream(tokenizer, stop_token_ids=[end])
    text = stream.feed([*tokenizer.encode("It is 42."), end], [0.0] * 99) + stream.finish()
    assert text == "It is 42."
