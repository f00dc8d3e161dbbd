"""Models that think, switched on and off: the same prompts in training, in play and when loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from students import of_family, template_of
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
CLOSED = "<think>\n\n</think>\n\n"
SWITCHED = ["qwen3", "qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "glm4moe", "nemotron_3_nano"]
ASKED = [said("system", "Guess the secret word."), said("user", "Begin.")]
FIRST, SECOND = call("guess", {"word": "crane"}), call("add", {"a": 1, "b": 2}, "call_2")


def speaker(kwargs: dict[str, Any]) -> tuple[PreTrainedTokenizerFast, ChatFormat]:
    tokenizer = of_family("qwen3")
    return tokenizer, find_chat_format(tokenizer, chat_template_kwargs=kwargs)


def text_of(tokenizer: Any, dialect: ChatFormat, messages: list[Any] | None = None) -> str:
    return str(tokenizer.decode(initial_prompt_ids(tokenizer, dialect, messages or ASKED, TOOLS)))


@pytest.mark.parametrize("family", SWITCHED)
@pytest.mark.parametrize("kwargs", [OFF, ON], ids=["off", "on"])
def test_a_switch_is_proven_as_the_template_without_it_is(
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


def test_the_prompt_of_a_model_that_is_not_to_think_has_the_thought_closed() -> None:
    assert text_of(*speaker(OFF)).endswith(f"<|im_start|>assistant\n{CLOSED}")
    assert text_of(*speaker(ON)) == text_of(*speaker({}))
    assert text_of(*speaker(ON)).endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("kwargs", "thoughts"), [(OFF, None), (ON, "Vowels first."), (ON, None)], ids=str
)
def test_what_is_trained_on_is_what_was_played_id_for_id(
    kwargs: dict[str, Any], thoughts: str | None
) -> None:
    """Prompt, reply, result and reply, as they are sampled, against the row that SFT is given."""
    tokenizer, dialect = speaker(kwargs)
    thought = {"reasoning_content": thoughts} if thoughts else {}
    turns = [calling(FIRST, **thought), answer("no"), calling(SECOND, **thought)]
    whole = render(tokenizer, [*ASKED, *turns], TOOLS, dialect.template)
    begun = f"<think>\n{thoughts or ''}\n</think>\n\n" if kwargs is ON else ""

    def sampled(turn: dict[str, Any]) -> list[int]:
        """What a model writes behind its prompt."""
        row = [said("user", "?"), turn]
        text = render(tokenizer, row, TOOLS, dialect.template).text
        said_last = text[text.rindex("<tool_call>") :].rstrip("\n")
        return list(tokenizer(begun + said_last, add_special_tokens=False).input_ids)

    played = initial_prompt_ids(tokenizer, dialect, ASKED, TOOLS) + sampled(turns[0])
    played += continuation_ids(
        tokenizer, dialect, [turns[1]], TOOLS, turn_ended=True, reply=turns[0]
    )
    played += sampled(turns[2])
    assert tuple(played) == whole.ids[: len(played)]
    assert tokenizer.decode(whole.ids[len(played) :]).strip() == ""


@pytest.mark.parametrize("cut", [False, True])
def test_replies_are_read_with_thinking_on_and_off(cut: bool) -> None:
    written = (
        '<tool_call>\n{"name": "guess", "arguments": {"word": "crane"}}\n</tool_call><|im_end|>'
    )
    for kwargs, begun in ((OFF, ""), (ON, "<think>\nVowels first.\n</think>\n\n")):
        tokenizer, dialect = speaker(kwargs)
        prompt = initial_prompt_ids(tokenizer, dialect, ASKED, TOOLS)
        reply = begun[:20] if cut else begun + written
        made = read(
            tokenizer, dialect, prompt, tokenizer(reply, add_special_tokens=False).input_ids, TOOLS
        )
        assert (made.content or "", bool(made.tool_calls)) == ("", not cut)
        thought = begun[8:20].strip() if cut else "Vowels first."
        assert made.reasoning_content == (thought if begun else None)


def test_a_saved_model_is_asked_as_it_was_trained_by_everybody(tmp_path: Path) -> None:
    tokenizer, dialect = speaker(OFF)
    set_chat_format(tokenizer, dialect)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    again = find_chat_format(loaded)
    assert (again.name, again.origin, again.template) == ("qwen3", "trl", dialect.template)
    assert again.chat_template_kwargs == OFF
    assert text_of(loaded, again) == text_of(tokenizer, dialect)

    plain = loaded.apply_chat_template(
        ASKED, tools=TOOLS, tokenize=False, add_generation_prompt=True
    )
    assert plain == text_of(tokenizer, dialect)
    other = find_chat_format(loaded, chat_template_kwargs=ON)
    assert other.chat_template_kwargs == ON and not text_of(loaded, other).endswith(CLOSED)


def test_trl_takes_a_saved_model_as_it_is(tmp_path: Path) -> None:
    from trl.chat_template_utils import (
        get_training_chat_template,
        is_chat_template_prefix_preserving,
    )

    tokenizer, dialect = speaker(OFF)
    set_chat_format(tokenizer, dialect)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert is_chat_template_prefix_preserving(loaded)
    assert get_training_chat_template(loaded) is None and loaded.response_template


@pytest.mark.parametrize("family", ["qwen2_5", "qwen3_instruct_2507", "llama3_2"])
def test_a_template_without_the_switch_is_refused(family: str) -> None:
    with pytest.raises(ConfigError, match="has no variable 'enable_thinking'") as refused:
        find_chat_format(of_family(family), chat_template_kwargs=OFF)
    assert "\n" not in str(refused.value)


def test_a_folder_says_before_it_is_loaded_what_it_is_asked_with(tmp_path: Path) -> None:
    model = saved(tmp_path / "plain", of_family("qwen3"))
    assert "chat_template_kwargs" not in PolicyAgent(str(model)).describe()
    told = PolicyAgent(str(model), chat_template_kwargs=OFF).describe()
    assert told["chat_template_kwargs"] == OFF

    tokenizer, dialect = speaker(OFF)
    set_chat_format(tokenizer, dialect)
    quiet = saved(tmp_path / "quiet", tokenizer)
    assert PolicyAgent(str(quiet)).describe()["chat_template_kwargs"] == OFF
    assert PolicyAgent(str(quiet), chat_template_kwargs=ON).describe()["chat_template_kwargs"] == ON
    policy = load(str(quiet), device="cpu")
    assert PolicyAgent(policy).describe()["chat_template_kwargs"] == OFF
    with pytest.raises(ConfigError, match="chat_template_kwargs"):
        PolicyAgent(policy, chat_template_kwargs=ON)


def test_the_marked_template_is_still_the_one_that_trl_trains_under() -> None:
    _, dialect = speaker(OFF)
    assert dialect.template.endswith(template_of("qwen3_training"))
