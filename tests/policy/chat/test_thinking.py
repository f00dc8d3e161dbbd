"""`enable_thinking` on and off: the same prompts in training, in rollouts and after saving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import of_family, template_of
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ludus.errors import ConfigError
from ludus.policy.agent import PolicyAgent
from ludus.policy.chat.chat_format import ChatFormat, find_chat_format, set_chat_format
from ludus.policy.chat.incremental_prompt import continuation_ids, initial_prompt_ids
from ludus.policy.chat.rendering import render
from ludus.policy.load import load
from policy.conversations import TOOLS, answer, call, calling, read, said
from policy.models import saved

OFF, ON = {"enable_thinking": False}, {"enable_thinking": True}
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"
FAMILIES_WITH_SWITCH = [
    "qwen3",
    "qwen3_5_think",
    "qwen3_5_nothink",
    "qwen3_6",
    "glm4moe",
    "nemotron_3_nano",
]
PROMPT = [said("system", "Guess the secret word."), said("user", "Begin.")]
FIRST, SECOND = call("guess", {"word": "crane"}), call("add", {"a": 1, "b": 2}, "call_2")


def tokenizer_and_format(kwargs: dict[str, Any]) -> tuple[PreTrainedTokenizerFast, ChatFormat]:
    tokenizer = of_family("qwen3")
    return tokenizer, find_chat_format(tokenizer, chat_template_kwargs=kwargs)


def prompt_text(tokenizer: Any, chat_format: ChatFormat, messages: list[Any] | None = None) -> str:
    return str(
        tokenizer.decode(initial_prompt_ids(tokenizer, chat_format, messages or PROMPT, TOOLS))
    )


@pytest.mark.parametrize("family", FAMILIES_WITH_SWITCH)
@pytest.mark.parametrize("kwargs", [OFF, ON], ids=["off", "on"])
def test_a_template_passes_its_check_with_thinking_on_and_off(
    family: str, kwargs: dict[str, Any]
) -> None:
    tokenizer = of_family(family)
    plain, switched = (
        find_chat_format(tokenizer),
        find_chat_format(tokenizer, chat_template_kwargs=kwargs),
    )
    assert (switched.name, switched.origin) == (plain.name, plain.origin) == (family, "trl")
    assert switched.template.endswith(plain.template) and switched.chat_template_kwargs == kwargs
    assert plain.chat_template_kwargs == {}


def test_without_thinking_the_prompt_contains_an_empty_thought() -> None:
    assert prompt_text(*tokenizer_and_format(OFF)).endswith(
        f"<|im_start|>assistant\n{EMPTY_THOUGHT}"
    )
    assert prompt_text(*tokenizer_and_format(ON)) == prompt_text(*tokenizer_and_format({}))
    assert prompt_text(*tokenizer_and_format(ON)).endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("kwargs", "thoughts"), [(OFF, None), (ON, "Vowels first."), (ON, None)], ids=str
)
def test_training_ids_equal_those_of_the_rollout(
    kwargs: dict[str, Any], thoughts: str | None
) -> None:
    """Prompt, reply, result and reply of a rollout, against the row of SFT."""
    tokenizer, chat_format = tokenizer_and_format(kwargs)
    thought = {"reasoning_content": thoughts} if thoughts else {}
    turns = [calling(FIRST, **thought), answer("no"), calling(SECOND, **thought)]
    whole = render(tokenizer, [*PROMPT, *turns], TOOLS, chat_format.template)
    thought_text = f"<think>\n{thoughts or ''}\n</think>\n\n" if kwargs is ON else ""

    def sampled_ids(turn: dict[str, Any]) -> list[int]:
        """What a model samples after its prompt."""
        row = [said("user", "?"), turn]
        text = render(tokenizer, row, TOOLS, chat_format.template).text
        call_text = text[text.rindex("<tool_call>") :].rstrip("\n")
        return list(tokenizer(thought_text + call_text, add_special_tokens=False).input_ids)

    incremental = initial_prompt_ids(tokenizer, chat_format, PROMPT, TOOLS) + sampled_ids(turns[0])
    incremental += continuation_ids(
        tokenizer, chat_format, [turns[1]], TOOLS, turn_ended=True, reply=turns[0]
    )
    incremental += sampled_ids(turns[2])
    assert tuple(incremental) == whole.ids[: len(incremental)]
    assert tokenizer.decode(whole.ids[len(incremental) :]).strip() == ""


@pytest.mark.parametrize("cut", [False, True])
def test_replies_are_parsed_with_thinking_on_and_off(cut: bool) -> None:
    call_text = (
        '<tool_call>\n{"name": "guess", "arguments": {"word": "crane"}}\n</tool_call><|im_end|>'
    )
    for kwargs, thought_text in ((OFF, ""), (ON, "<think>\nVowels first.\n</think>\n\n")):
        tokenizer, chat_format = tokenizer_and_format(kwargs)
        prompt = initial_prompt_ids(tokenizer, chat_format, PROMPT, TOOLS)
        reply = thought_text[:20] if cut else thought_text + call_text
        message = read(
            tokenizer,
            chat_format,
            prompt,
            tokenizer(reply, add_special_tokens=False).input_ids,
            TOOLS,
        )
        assert (message.content or "", bool(message.tool_calls)) == ("", not cut)
        thought = thought_text[8:20].strip() if cut else "Vowels first."
        assert message.reasoning_content == (thought if thought_text else None)


def test_a_saved_tokenizer_renders_the_prompts_of_training(tmp_path: Path) -> None:
    tokenizer, chat_format = tokenizer_and_format(OFF)
    set_chat_format(tokenizer, chat_format)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    again = find_chat_format(loaded)
    assert (again.name, again.origin, again.template) == ("qwen3", "trl", chat_format.template)
    assert again.chat_template_kwargs == OFF
    assert prompt_text(loaded, again) == prompt_text(tokenizer, chat_format)

    plain = loaded.apply_chat_template(
        PROMPT, tools=TOOLS, tokenize=False, add_generation_prompt=True
    )
    assert plain == prompt_text(tokenizer, chat_format)
    other = find_chat_format(loaded, chat_template_kwargs=ON)
    assert other.chat_template_kwargs == ON and not prompt_text(loaded, other).endswith(
        EMPTY_THOUGHT
    )


def test_trl_accepts_a_saved_template_unchanged(tmp_path: Path) -> None:
    from trl.chat_template_utils import (
        get_training_chat_template,
        is_chat_template_prefix_preserving,
    )

    tokenizer, chat_format = tokenizer_and_format(OFF)
    set_chat_format(tokenizer, chat_format)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert is_chat_template_prefix_preserving(loaded)
    assert get_training_chat_template(loaded) is None and loaded.response_template


@pytest.mark.parametrize("family", ["qwen2_5", "qwen3_instruct_2507", "llama3_2"])
def test_a_template_without_the_switch_is_rejected(family: str) -> None:
    with pytest.raises(ConfigError, match="'enable_thinking'") as refused:
        find_chat_format(of_family(family), chat_template_kwargs=OFF)
    assert "\n" not in str(refused.value)


def test_an_agent_describes_its_template_kwargs_before_loading(tmp_path: Path) -> None:
    model = saved(tmp_path / "plain", of_family("qwen3"))
    assert "chat_template_kwargs" not in PolicyAgent(str(model)).describe()
    description = PolicyAgent(str(model), chat_template_kwargs=OFF).describe()
    assert description["chat_template_kwargs"] == OFF

    tokenizer, chat_format = tokenizer_and_format(OFF)
    set_chat_format(tokenizer, chat_format)
    saved_off = saved(tmp_path / "thinking_off", tokenizer)
    assert PolicyAgent(str(saved_off)).describe()["chat_template_kwargs"] == OFF
    assert (
        PolicyAgent(str(saved_off), chat_template_kwargs=ON).describe()["chat_template_kwargs"]
        == ON
    )
    policy = load(str(saved_off), device="cpu")
    assert PolicyAgent(policy).describe()["chat_template_kwargs"] == OFF
    with pytest.raises(ConfigError, match="chat_template_kwargs"):
        PolicyAgent(policy, chat_template_kwargs=ON)


def test_the_template_with_defaults_ends_with_trls_training_template() -> None:
    _, chat_format = tokenizer_and_format(OFF)
    assert chat_format.template.endswith(template_of("qwen3_training"))
