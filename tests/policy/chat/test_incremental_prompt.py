"""A conversation that is played turn by turn has the very ids of one that is rendered at once."""

from __future__ import annotations

from typing import Any

import pytest
from students import of_family, student, template_of, with_tokens_of
from transformers import PreTrainedTokenizerFast

from ludus.data.content import Image, Text
from ludus.data.messages import Call, Function, Message, message_from_content
from ludus.errors import AgentError
from ludus.policy.chat.chat_format import FAMILIES, ChatFormat, find_chat_format, trl_families
from ludus.policy.chat.incremental_prompt import (
    continuation_ids,
    initial_prompt_ids,
    to_template_message,
)
from ludus.policy.chat.rendering import render
from policy.conversations import PLAYED, TOOLS, call, calling, read

MESSAGES = PLAYED["messages"]
WITHOUT_TOOLS = {
    "cohere", "cohere2", "deepseek_r1_distill", "deepseekv3", "diffusion_gemma", "idefics3",
    "llava_next", "smolvlm",
}  # fmt: skip
TRL = ["qwen3", "qwen2_5", "qwen3_5_think", "lfm2_v2", "glm4moe"]


def speaker(family: str) -> tuple[PreTrainedTokenizerFast, ChatFormat]:
    tokenizer = with_tokens_of(family) if family in FAMILIES else of_family(family)
    return tokenizer, find_chat_format(tokenizer)


def replies(dialect: ChatFormat, whole: Any, prompt: list[int]) -> list[list[int]]:
    """Each turn of the assistant as the model would sample it: up to the token that ends it."""
    found: list[list[int]] = []
    for begin, end in whole.spans:
        turn = list(whole.ids[max(begin, len(prompt)) if not found else begin : end])
        last = max(at for at, token in enumerate(turn) if token in dialect.stop_token_ids)
        found.append(turn[: last + 1])
    return found


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3", "qwen3_instruct_2507", "lfm2_v2"])
def test_played_is_rendered_id_for_id(family: str) -> None:
    tokenizer, dialect = speaker(family)
    whole = render(tokenizer, MESSAGES, TOOLS, dialect.template)
    ids = initial_prompt_ids(tokenizer, dialect, MESSAGES[:2], TOOLS)
    sampled = replies(dialect, whole, ids)
    for reply, next_ones in zip(sampled, ([3], [5, 6], [8], []), strict=True):
        ids += reply
        if next_ones:
            heard = [MESSAGES[at] for at in next_ones]
            ids += continuation_ids(tokenizer, dialect, heard, TOOLS, turn_ended=True)
    assert ids == list(whole.ids[: len(ids)])
    rest = tokenizer.decode(whole.ids[len(ids) :])
    assert rest.strip() == "", "only white space after the end of the last turn is not played"


@pytest.mark.parametrize("family", [*FAMILIES, *sorted({*trl_families()} - WITHOUT_TOOLS)])
def test_a_result_stands_beside_the_name_of_the_tool_that_was_called(family: str) -> None:
    """Also where the result does not say it, as in play."""
    tokenizer, dialect = speaker(family)
    reply = calling(call("add", {"a": 1, "b": 2}, "call_3"))
    heard = [{"role": "tool", "content": "3", "tool_call_id": "call_3"}]
    whole = render(
        tokenizer, [MESSAGES[1], reply, *heard], TOOLS, dialect.template, add_generation_prompt=True
    )
    played = continuation_ids(tokenizer, dialect, heard, TOOLS, turn_ended=True, reply=reply)
    assert tuple(played) == whole.ids[-len(played) :]
    assert "3" in tokenizer.decode(played)


@pytest.mark.parametrize("ended", [True, False])
def test_an_end_that_is_never_sampled_is_still_put_behind_what_was_cut_off(ended: bool) -> None:
    tokenizer, dialect = speaker("gptoss")
    assert {tokenizer.decode([stop]) for stop in dialect.stop_token_ids} == {
        "<|return|>",
        "<|call|>",
    }
    text = tokenizer.decode(
        continuation_ids(tokenizer, dialect, [MESSAGES[1]], TOOLS, turn_ended=ended)
    )
    assert text.startswith("<|start|>user" if ended else "<|end|><|start|>user")


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3", "lfm2_v2"])
def test_words_that_come_in_parts_are_read(family: str) -> None:
    tokenizer, dialect = speaker(family)
    parts = (Text(text="First this."), Text(text="Then that."))
    for role, more in (("user", {}), ("tool", {"tool_call_id": "a"})):
        shown, plain = (
            Message(role=role, content=content, **more)  # type: ignore[arg-type]
            for content in (parts, "First this.\nThen that.")
        )
        ids = continuation_ids(tokenizer, dialect, [shown], TOOLS, turn_ended=True)
        assert ids == continuation_ids(tokenizer, dialect, [plain], TOOLS, turn_ended=True)
        assert "Then that." in tokenizer.decode(ids)


def test_a_picture_is_refused_and_not_left_out() -> None:
    tokenizer, dialect = speaker("qwen3")
    picture = message_from_content("user", [Text(text="Look."), Image.from_bytes(b"a")])
    with pytest.raises(AgentError, match="shows a picture, and this model reads only text"):
        initial_prompt_ids(tokenizer, dialect, [picture], TOOLS)


@pytest.mark.parametrize("family", [*FAMILIES, *TRL])
def test_a_reply_that_was_cut_off_is_ended(family: str) -> None:
    tokenizer, dialect = speaker(family)
    heard = [MESSAGES[3]]
    ended = continuation_ids(tokenizer, dialect, heard, TOOLS, turn_ended=True)
    cut = continuation_ids(tokenizer, dialect, heard, TOOLS, turn_ended=False)
    assert cut[1:] == ended and cut[0] in dialect.stop_token_ids
    assert "no" in tokenizer.decode(ended) and "crane" not in tokenizer.decode(ended)


@pytest.mark.parametrize("family", [*FAMILIES, *TRL])
def test_what_was_rendered_is_read_back(family: str) -> None:
    tokenizer, dialect = speaker(family)
    whole = render(tokenizer, MESSAGES[:5], TOOLS, dialect.template)
    prompt = initial_prompt_ids(tokenizer, dialect, MESSAGES[:4], TOOLS)
    made = read(tokenizer, dialect, prompt, whole.ids[len(prompt) :], TOOLS)
    assert made.tool_calls is not None
    assert [(one.function.name, one.function.arguments) for one in made.tool_calls] == [
        ("guess", '{"word": "über"}'),
        ("add", '{"a": 1, "b": 2}'),
    ]
    assert made.content == ""
    assert len({one.id for one in made.tool_calls}) == 2


@pytest.mark.parametrize("family", ["qwen3", "chatml", "llama3", "mistral"])
def test_thoughts_and_words_are_read_apart(family: str) -> None:
    tokenizer, dialect = speaker(family)
    whole = render(tokenizer, MESSAGES[:8], TOOLS, dialect.template)
    prompt = initial_prompt_ids(tokenizer, dialect, MESSAGES[:7], TOOLS)
    made = read(tokenizer, dialect, prompt, whole.ids[len(prompt) :], TOOLS)
    assert (made.reasoning_content, made.content, made.tool_calls) == ("Done.", "Found it.", None)


def test_messages_and_their_rows_open_alike() -> None:
    tokenizer, dialect = speaker("chatml")
    function = Function(name="guess", arguments='{"word": "crane"}')
    talk = [
        Message(role="user", content="Begin."),
        Message(role="assistant", tool_calls=(Call(id="a", function=function),)),
        Message(role="tool", content="no", tool_call_id="a"),
    ]
    rows = [to_template_message(each) for each in talk]
    assert rows[1]["tool_calls"][0]["function"]["arguments"] == {"word": "crane"}
    ids = initial_prompt_ids(tokenizer, dialect, talk, [])
    assert ids == initial_prompt_ids(tokenizer, dialect, rows, None)
    assert tokenizer.decode(ids).endswith("no<|im_end|>\n<|im_start|>assistant\n")


def test_arguments_that_are_no_object_are_given_as_they_were_written() -> None:
    for written in ("{broken", "[1]", '"word"'):
        made = to_template_message(
            Message(
                role="assistant",
                tool_calls=(Call(id="a", function=Function(name="guess", arguments=written)),),
            )
        )
        assert made["tool_calls"][0]["function"]["arguments"] == written


def test_the_ids_of_calls_differ_from_turn_to_turn() -> None:
    tokenizer, dialect = speaker("chatml")
    ids = tokenizer('<tool_call>\n{"name": "guess", "arguments": {}}\n</tool_call><|im_end|>')
    found = [
        read(tokenizer, dialect, [1] * size, ids.input_ids, TOOLS).tool_calls for size in (5, 50)
    ]
    assert found[0] and found[1] and found[0][0].id != found[1][0].id


@pytest.mark.parametrize("ended", [True, False])
def test_an_end_that_is_not_marked_is_found_behind_the_marks(ended: bool) -> None:
    """A template of somebody else's may leave the end of a turn to the one that follows it."""
    late = template_of("qwen3_training").replace(
        "{{- '<|im_end|>\\n' }}\n        {%- endgeneration %}",
        "{%- endgeneration %}\n        {{- '<|im_end|>\\n' }}",
    )
    tokenizer = student(late)
    dialect = find_chat_format(tokenizer)
    assert dialect.origin == "own"
    text = tokenizer.decode(
        continuation_ids(tokenizer, dialect, [MESSAGES[3]], TOOLS, turn_ended=ended)
    )
    assert text.startswith("\n<|im_start|>user" if ended else "<|im_end|>\n<|im_start|>user")
