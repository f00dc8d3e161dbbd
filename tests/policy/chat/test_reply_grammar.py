"""Grammars of replies, against what the chat templates of families write."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import torch
from tiny_tokenizers import of_family, with_tokens_of
from tokenizers import AddedToken

from ludus.policy.chat.chat_format import ChatFormat, find_chat_format_with_fallback
from ludus.policy.chat.reply_grammar import ReplyGrammar, ReplyShape, Thinking, read_reply_shape
from ludus.policy.chat.reply_parser import ReplyParser
from ludus.policy.engine.grammar import Grammar, GrammarCompiler, mask_logits

pytest.importorskip("llguidance", reason="needs the extra train")

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
FUNCTION: dict[str, Any] = {"name": "find_it", "parameters": SCHEMA}


def read(tokenizer: Any) -> tuple[ChatFormat, ReplyShape]:
    chat_format = find_chat_format_with_fallback(tokenizer)
    return chat_format, read_reply_shape(tokenizer, chat_format)


def compile_grammar(tokenizer: Any, bodies: Any, thinking: Thinking = "no") -> Grammar:
    return asyncio.run(GrammarCompiler(tokenizer).compile(ReplyGrammar(thinking, bodies)))


def allows(grammar: Grammar, tokenizer: Any, text: str) -> bool:
    """Whether every token of the text may be sampled, and then the end of the reply."""
    constraint = grammar.start([tokenizer.eos_token_id])
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    for token in [*ids, tokenizer.eos_token_id]:
        # More logits than tokens, as models have them.
        masked = mask_logits(torch.zeros(2, len(tokenizer) + 70), {1: constraint})
        assert not masked[0].any() and (masked[1, len(tokenizer) :] < 0).all()
        if masked[1, token] < 0:
            return False
        constraint.accept(token)
    return True


@pytest.mark.parametrize("family", ["hermes", "llama3", "mistral", "qwen3", "gptoss"])
def test_a_call_is_written_as_the_template_writes_it(family: str) -> None:
    own = family in ("qwen3", "gptoss")
    tokenizer = of_family(family) if own else with_tokens_of(family)
    chat_format, shape = read(tokenizer)
    assert shape.call is not None
    before, between, behind = shape.call
    text = f'{before}find_it{between}{{"a": 5}}{behind}'
    parser = ReplyParser(tokenizer, chat_format.response_template, chat_format.stop_token_ids)
    message = parser.parse_text((), text, None, call_id_prefix="x")
    (call,) = message.tool_calls or ()
    assert (call.function.name, json.loads(call.function.arguments)) == ("find_it", {"a": 5})
    grammar = compile_grammar(tokenizer, shape.bodies(None, [FUNCTION]))
    assert allows(grammar, tokenizer, text)
    for wrong in (text.replace("find_it", "find"), text.replace("5", '"5"'), '{"a": 5}', "Hello."):
        assert not allows(grammar, tokenizer, wrong)


def test_json_of_the_content_is_in_its_channel() -> None:
    tokenizer = of_family("gptoss")
    _, shape = read(tokenizer)
    grammar = compile_grammar(tokenizer, shape.bodies(SCHEMA, []))
    assert allows(grammar, tokenizer, '<|channel|>final<|message|>{"a":5}')
    assert not allows(grammar, tokenizer, '{"a":5}')


@pytest.mark.parametrize("as_tokens", [True, False])
def test_a_thought_comes_first_where_the_model_has_them(as_tokens: bool) -> None:
    tokenizer = of_family("qwen3")
    if as_tokens:
        tags = [AddedToken(tag, special=False, normalized=False) for tag in ("<think>", "</think>")]
        tokenizer.add_tokens(tags)
    _, shape = read(tokenizer)
    bodies = shape.bodies(SCHEMA, [])
    thought, reply = 'Is {"a": "b"} < 3?\n</think>\n\n', '{"a": 5}'
    for thinking, texts in {
        "no": [reply],
        "may start": [reply, f"<think>\n{thought}{reply}"],
        # As text, a tag inside a thought is part of it.
        "has started": [thought + reply, f"<think>\n{thought}{reply}"][: 2 - as_tokens],
    }.items():
        grammar = compile_grammar(tokenizer, bodies, thinking)  # type: ignore[arg-type]
        allowed = [reply, thought + reply, f"<think>\n{thought}{reply}"]
        assert [text for text in allowed if allows(grammar, tokenizer, text)] == texts

    def thinking_after(prompt: str) -> str:
        return shape.thinking_after(tokenizer, tokenizer(prompt)["input_ids"])

    start = "<|im_start|>assistant\n"
    assert thinking_after(start) == ("may start" if as_tokens else "no")
    assert thinking_after(f"{start}<think>\n") == "has started"
    assert thinking_after(f"{start}<think>\n\n</think>\n\n") == "no"


def test_calls_without_json_or_that_look_like_the_content_have_no_grammar() -> None:
    _, shape = read(of_family("glm4moe"))
    with pytest.raises(ValueError, match="not known"):
        shape.bodies(None, [FUNCTION])
    _, shape = read(with_tokens_of("llama3"))
    with pytest.raises(ValueError, match="bare JSON"):
        shape.bodies(SCHEMA, [FUNCTION])
    with pytest.raises(ValueError, match="name"):
        shape.bodies(None, [{"name": 'x"'}])
