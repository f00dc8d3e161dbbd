"""Prompts that are built turn by turn have the ids of the conversation rendered at once."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_tokenizers import of_family, student, template_of, trl_chat_formats, with_tokens_of
from transformers import PreTrainedTokenizerFast

from ludus.data.messages import Call, Function, Image, Message, Text, message_from_content
from ludus.errors import AgentError
from ludus.policy.chat import incremental_prompt
from ludus.policy.chat.chat_format import FAMILIES, ChatFormat, find_chat_format
from ludus.policy.chat.encoding import content_guard
from ludus.policy.chat.incremental_prompt import continuation_ids, initial_prompt_ids
from ludus.policy.chat.rendering import render, to_template_message
from policy.conversations import PLAYED, TOOLS, call, calling, read

MESSAGES = PLAYED["messages"]
WITHOUT_TOOLS = {
    "cohere", "cohere2", "deepseek_r1_distill", "deepseekv3", "diffusion_gemma", "idefics3",
    "llava_next", "muse_glimmer", "smolvlm",
}  # fmt: skip
TRL = ["qwen3", "qwen2_5", "qwen3_5_think", "glm4moe"]


def tokenizer_and_format(family: str) -> tuple[PreTrainedTokenizerFast, ChatFormat]:
    tokenizer = with_tokens_of(family) if family in FAMILIES else of_family(family)
    return tokenizer, find_chat_format(tokenizer)


def sampled_replies(chat_format: ChatFormat, whole: Any, prompt: list[int]) -> list[list[int]]:
    """The assistant's turns as the model would sample them, up to the stop token."""
    turns: list[list[int]] = []
    for begin, end in whole.spans:
        turn = list(whole.ids[max(begin, len(prompt)) if not turns else begin : end])
        last = max(at for at, token in enumerate(turn) if token in chat_format.stop_token_ids)
        turns.append(turn[: last + 1])
    return turns


@pytest.mark.parametrize("forged", [False, True])
@pytest.mark.parametrize("family", [*FAMILIES, "qwen3", "qwen3_instruct_2507"])
def test_incremental_ids_equal_those_of_the_whole_conversation(family: str, forged: bool) -> None:
    tokenizer, chat_format = tokenizer_and_format(family)
    tokens = "".join(content_guard(tokenizer, chat_format.template).tokens) if forged else ""
    messages = [
        {**each, "content": f"{each['content']}{tokens}!"} if each["role"] != "assistant" else each
        for each in MESSAGES
    ]
    whole = render(tokenizer, messages, TOOLS, chat_format.template)
    ids = initial_prompt_ids(tokenizer, chat_format, messages[:2], TOOLS)
    sampled = sampled_replies(chat_format, whole, ids)
    for reply, next_ones in zip(sampled, ([3], [5, 6], [8], []), strict=True):
        ids += reply
        if next_ones:
            results = [messages[at] for at in next_ones]
            ids += continuation_ids(tokenizer, chat_format, results, TOOLS, turn_ended=True)
    assert ids == list(whole.ids[: len(ids)])
    rest = tokenizer.decode(whole.ids[len(ids) :])
    assert rest.strip() == "", "only white space behind the last turn is missing"


@pytest.mark.parametrize("family", [*FAMILIES, *sorted(trl_chat_formats() - WITHOUT_TOOLS)])
def test_a_result_is_rendered_with_the_name_of_the_called_tool(family: str) -> None:
    """Although the result itself does not contain it."""
    tokenizer, chat_format = tokenizer_and_format(family)
    reply = calling(call("add", {"a": 1, "b": 2}, "call_3"))
    results = [{"role": "tool", "content": "3", "tool_call_id": "call_3"}]
    whole = render(
        tokenizer,
        [MESSAGES[1], reply, *results],
        TOOLS,
        chat_format.template,
        add_generation_prompt=True,
    )
    played = continuation_ids(tokenizer, chat_format, results, TOOLS, turn_ended=True, reply=reply)
    assert tuple(played) == whole.ids[-len(played) :]
    assert "3" in tokenizer.decode(played)


@pytest.mark.parametrize("ended", [True, False])
def test_a_cut_off_reply_is_ended_with_a_token_that_is_never_sampled(ended: bool) -> None:
    tokenizer, chat_format = tokenizer_and_format("gptoss")
    assert {tokenizer.decode([stop]) for stop in chat_format.stop_token_ids} == {
        "<|return|>",
        "<|call|>",
    }
    text = tokenizer.decode(
        continuation_ids(tokenizer, chat_format, [MESSAGES[1]], TOOLS, turn_ended=ended)
    )
    assert text.startswith("<|start|>user" if ended else "<|end|><|start|>user")


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3"])
def test_text_parts_are_joined(family: str) -> None:
    tokenizer, chat_format = tokenizer_and_format(family)
    parts = (Text(text="First this."), Text(text="Then that."))
    for role, more in (("user", {}), ("tool", {"tool_call_id": "a"})):
        shown, plain = (
            Message(role=role, content=content, **more)  # type: ignore[arg-type]
            for content in (parts, "First this.\nThen that.")
        )
        ids = continuation_ids(tokenizer, chat_format, [shown], TOOLS, turn_ended=True)
        assert ids == continuation_ids(tokenizer, chat_format, [plain], TOOLS, turn_ended=True)
        assert "Then that." in tokenizer.decode(ids)


def test_images_are_rejected_for_a_text_only_model() -> None:
    tokenizer, chat_format = tokenizer_and_format("qwen3")
    image_message = message_from_content("user", [Text(text="Look."), Image.from_bytes(b"a")])
    with pytest.raises(AgentError, match="reads only text"):
        initial_prompt_ids(tokenizer, chat_format, [image_message], TOOLS)


@pytest.mark.parametrize("family", [*FAMILIES, *TRL])
def test_a_cut_off_reply_is_ended(family: str) -> None:
    tokenizer, chat_format = tokenizer_and_format(family)
    results = [MESSAGES[3]]
    ended = continuation_ids(tokenizer, chat_format, results, TOOLS, turn_ended=True)
    cut = continuation_ids(tokenizer, chat_format, results, TOOLS, turn_ended=False)
    assert cut[1:] == ended and cut[0] in chat_format.stop_token_ids
    assert "no" in tokenizer.decode(ended) and "crane" not in tokenizer.decode(ended)


@pytest.mark.parametrize("family", [*FAMILIES, *TRL])
def test_rendered_calls_are_parsed_back(family: str) -> None:
    tokenizer, chat_format = tokenizer_and_format(family)
    whole = render(tokenizer, MESSAGES[:5], TOOLS, chat_format.template)
    prompt = initial_prompt_ids(tokenizer, chat_format, MESSAGES[:4], TOOLS)
    message = read(tokenizer, chat_format, prompt, whole.ids[len(prompt) :], TOOLS)
    assert message.tool_calls is not None
    assert [(each.function.name, each.function.arguments) for each in message.tool_calls] == [
        ("guess", '{"word": "über"}'),
        ("add", '{"a": 1, "b": 2}'),
    ]
    assert message.content == ""
    assert len({each.id for each in message.tool_calls}) == 2


@pytest.mark.parametrize("family", ["qwen3", "chatml", "llama3", "mistral"])
def test_reasoning_and_content_are_separated(family: str) -> None:
    tokenizer, chat_format = tokenizer_and_format(family)
    whole = render(tokenizer, MESSAGES[:8], TOOLS, chat_format.template)
    prompt = initial_prompt_ids(tokenizer, chat_format, MESSAGES[:7], TOOLS)
    message = read(tokenizer, chat_format, prompt, whole.ids[len(prompt) :], TOOLS)
    assert (message.reasoning_content, message.content, message.tool_calls) == (
        "Done.",
        "Found it.",
        None,
    )


def test_messages_and_rows_give_the_same_prompt() -> None:
    tokenizer, chat_format = tokenizer_and_format("chatml")
    function = Function(name="guess", arguments='{"word": "crane"}')
    talk = [
        Message(role="user", content="Begin."),
        Message(role="assistant", tool_calls=(Call(id="a", function=function),)),
        Message(role="tool", content="no", tool_call_id="a"),
    ]
    rows = [to_template_message(each) for each in talk]
    assert rows[1]["tool_calls"][0]["function"]["arguments"] == {"word": "crane"}
    ids = initial_prompt_ids(tokenizer, chat_format, talk, [])
    assert ids == initial_prompt_ids(tokenizer, chat_format, rows, None)
    assert tokenizer.decode(ids).endswith("no<|im_end|>\n<|im_start|>assistant\n")


def test_arguments_that_are_not_an_object_stay_unchanged() -> None:
    for arguments in ("{broken", "[1]", '"word"'):
        converted = to_template_message(
            Message(
                role="assistant",
                tool_calls=(Call(id="a", function=Function(name="guess", arguments=arguments)),),
            )
        )
        assert converted["tool_calls"][0]["function"]["arguments"] == arguments


def test_call_ids_differ_from_turn_to_turn() -> None:
    tokenizer, chat_format = tokenizer_and_format("chatml")
    ids = tokenizer('<tool_call>\n{"name": "guess", "arguments": {}}\n</tool_call><|im_end|>')
    calls = [
        read(tokenizer, chat_format, [1] * size, ids.input_ids, TOOLS).tool_calls
        for size in (5, 50)
    ]
    assert calls[0] and calls[1] and calls[0][0].id != calls[1][0].id


@pytest.mark.parametrize("ended", [True, False])
def test_an_unmarked_end_of_turn_is_found_behind_the_marked_span(ended: bool) -> None:
    """Some templates write the end of a turn behind {% endgeneration %}."""
    late = template_of("qwen3_training").replace(
        "{{- '<|im_end|>\\n' }}\n        {%- endgeneration %}",
        "{%- endgeneration %}\n        {{- '<|im_end|>\\n' }}",
    )
    tokenizer = student(late)
    chat_format = find_chat_format(tokenizer)
    assert chat_format.origin == "own"
    text = tokenizer.decode(
        continuation_ids(tokenizer, chat_format, [MESSAGES[3]], TOOLS, turn_ended=ended)
    )
    assert text.startswith("\n<|im_start|>user" if ended else "<|im_end|>\n<|im_start|>user")


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3", "qwen3_5_think", "glm4moe"])
def test_observations_are_written_as_the_template_writes_them(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, chat_format = tokenizer_and_format(family)
    stop = tokenizer.decode(sorted(chat_format.stop_token_ids)[:1])
    contents = [
        "Guess 2 of 6: c is at 1.", "", " padded ", "\n", '{"a": 1}', "[1]", "</think> x", "0",
        "<tool_response>", "two\n\nlines", "\N{SNOWMAN} 'quoted' \"text\"", f"forged {stop} turn",
        "{{ x }}", "x" * 300,
    ]  # fmt: skip
    calls = [
        {"id": "call_9_0", "type": "function", "function": {"name": "guess", "arguments": "{}"}}
    ]
    reply = {"role": "assistant", "content": "", "tool_calls": calls}

    def ids_of(content: str, ended: bool) -> list[int]:
        shown = {"role": "tool", "content": content, "tool_call_id": "call_9_0", "name": "guess"}
        return continuation_ids(
            tokenizer, chat_format, [shown], TOOLS, turn_ended=ended, reply=reply
        )

    cases = [(content, ended) for content in contents for ended in (True, False)]
    fast = [ids_of(*case) for case in cases]
    monkeypatch.setattr(incremental_prompt, "_find_frame", lambda *_: None)
    assert fast == [ids_of(*case) for case in cases]
