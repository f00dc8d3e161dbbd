"""Every model gets a dialect that is proven, or a line that says why it has none."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from students import WORDS, of_family, student, template_of, with_tokens_of
from tokenizers import normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ludus.errors import LudusError, TemplateUnmarked
from ludus.policy.chat.chat_format import (
    FAMILIES,
    find_chat_format,
    find_chat_format_with_fallback,
    set_chat_format,
    trl_families,
)
from ludus.policy.chat.rendering import common_prefix_length, render, render_text
from policy.conversations import ENDED, PLAYED, TALK, TOOLS, answer, call, calling, read, said

pytestmark = pytest.mark.filterwarnings("default")  # TRL and torch warn about each other.

MARKED = template_of("qwen3_training")
KNOWN_TO_TRL = ["qwen2_5", "qwen3", "qwen3_5_think", "qwen3_6", "glm4moe", "lfm2_v2", "gptoss"]


def test_a_template_that_can_do_all_of_it_is_used_as_it_is() -> None:
    dialect = find_chat_format(student(MARKED))
    assert (dialect.name, dialect.origin, dialect.template) == ("own", "own", MARKED)


def test_a_models_own_way_of_reading_comes_first() -> None:
    tokenizer = student(MARKED)
    mine = {
        **find_chat_format(tokenizer).response_template,
        "defaults": {"role": "assistant", "mine": True},
    }
    tokenizer.response_template = mine
    assert find_chat_format(tokenizer).response_template == mine


@pytest.mark.parametrize(
    "own",
    [
        {"start_anchor": "nowhere", "fields": {"content": {}}},
        {"start_anchor": "<|im_start|>assistant", "fields": {"tool_calls": {"open": "<call>"}}},
        {"type": "object", "x-regex": "(.*)"},
    ],
)
def test_a_way_of_reading_that_does_not_read_is_not_taken(own: dict[str, Any]) -> None:
    tokenizer = student(MARKED)
    good = find_chat_format(tokenizer).response_template
    tokenizer.response_template = own
    assert find_chat_format(tokenizer).response_template == good


@pytest.mark.parametrize("family", KNOWN_TO_TRL)
def test_a_template_that_trl_knows_is_swapped_as_trl_swaps_it(family: str) -> None:
    from trl.chat_template_utils import get_training_chat_template

    tokenizer = of_family(family)
    dialect = find_chat_format(tokenizer)
    assert (dialect.name, dialect.origin) == (family, "trl")
    assert dialect.template == get_training_chat_template(tokenizer)


@pytest.mark.parametrize("family", [*KNOWN_TO_TRL, "nemotron_3_nano", "qwen3_8"])
def test_replies_are_read_as_trl_has_them_read(family: str) -> None:
    from trl.chat_template_utils import add_response_schema

    tokenizer = of_family(family)
    dialect = find_chat_format(tokenizer)
    theirs = add_response_schema(of_family(family)).response_template
    reply = calling(call("guess", {"word": "007 ☃"}), reasoning_content="Hm.")
    for last in (reply, said("assistant", "It is 42.")):
        talk = [said("user", "Begin."), last]
        asked = render(tokenizer, talk[:1], TOOLS, dialect.template, add_generation_prompt=True).ids
        ids = render(tokenizer, talk, TOOLS, dialect.template).ids
        at = common_prefix_length(asked, ids)
        ours = read(tokenizer, dialect, ids[:at], ids[at:], TOOLS)
        text, prompt = tokenizer.decode(ids[at:]), tokenizer.decode(ids[:at])
        trls = tokenizer.parse_response(text, dict(theirs), prefix=prompt, tools=TOOLS)
        called = [one.function.model_dump() for one in ours.tool_calls or ()]
        for function in called:
            function["arguments"] = json.loads(function["arguments"])
        assert called == [one["function"] for one in trls.get("tool_calls", ())]
        assert bool(called) == (last is reply)
        assert ours.reasoning_content == trls.get("reasoning_content", trls.get("thinking"))
        if last is not reply:  # With a call TRL's leaves an end token there.
            assert ours.content == trls["content"]


@pytest.mark.parametrize(
    ("family", "ours"),
    [
        ("llama3", "llama3"),
        ("llama3_1", "llama3"),
        ("llama3_2", "llama3"),
        ("gemma", "gemma"),
        ("gemma3", "gemma"),
        ("phi3", "phi"),
        ("lfm2", "chatml"),
    ],
)
def test_a_model_whose_template_knows_no_tools_or_no_marks_gets_ours(
    family: str, ours: str
) -> None:
    dialect = find_chat_format(of_family(family))
    assert (dialect.name, dialect.origin) == (ours, "ludus")


@pytest.mark.parametrize("family", ["llama3", "gemma", "gemma3", "phi3", "deepseekv3", "cohere2"])
def test_where_no_tools_are_asked_for_trls_will_do(family: str) -> None:
    dialect = find_chat_format(of_family(family), tools=False)
    assert (dialect.name, dialect.origin) == (family, "trl")


def test_one_letter_more_makes_a_template_unknown_but_not_its_family() -> None:
    changed = template_of("qwen3") + " "
    assert find_chat_format(student(changed)).name == "chatml"
    tokens = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
    assert find_chat_format(student(changed, tokens=tokens)).name == "hermes"


def test_of_several_families_in_a_vocabulary_the_one_that_is_written_is_meant() -> None:
    both = student(template_of("llama3"), tokens=("<|im_start|>", "<|im_end|>"))
    assert find_chat_format(both).name == "llama3"


@pytest.mark.parametrize("family", FAMILIES)
def test_ours_end_each_turn_and_teach_to_end_it(family: str) -> None:
    tokenizer = with_tokens_of(family)
    dialect = find_chat_format(tokenizer)
    assert (dialect.name, dialect.origin) == (family, "ludus")
    made = render(tokenizer, PLAYED["messages"], TOOLS, dialect.template)
    assert len(made.spans) == 4
    assert all(made.ids[end - 1] in dialect.stop_token_ids for _, end in made.spans)
    assert tokenizer.convert_tokens_to_ids(FAMILIES[family][-1]) in made.ids or family == "hermes"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tools", [TOOLS, None])
def test_ours_write_a_conversation_as_the_beginning_of_a_longer_one(
    family: str, tools: list[dict[str, Any]] | None
) -> None:
    tokenizer = with_tokens_of(family)
    template = find_chat_format(tokenizer).template
    messages = PLAYED["messages"]
    texts = [render_text(tokenizer, messages[:end], tools, template) for end in range(1, 11)]
    assert all(longer.startswith(text) for text, longer in pairwise(texts))


@pytest.mark.parametrize("family", FAMILIES)
def test_ours_write_nothing_of_tools_where_there_are_none(family: str) -> None:
    tokenizer = with_tokens_of(family)
    template = find_chat_format(tokenizer).template
    plain = render_text(tokenizer, TALK["messages"], None, template)
    assert plain == render_text(tokenizer, TALK["messages"], [], template)
    assert "tool" not in plain.lower()
    assert render_text(tokenizer, TALK["messages"], TOOLS, template) != plain


@pytest.mark.parametrize("family", FAMILIES)
def test_ours_take_rows_in_every_form(family: str) -> None:
    tokenizer = with_tokens_of(family)
    template = find_chat_format(tokenizer).template

    def text(arguments: Any, parts: Any, tools: Any) -> str:
        talk = [{"role": "user", "content": parts}, calling(call("guess", arguments)), answer("no")]
        return render_text(tokenizer, talk, tools, template)

    whole = text({"word": "a"}, "Go on.", TOOLS)
    parts = [{"type": "text", "text": "Go "}, {"type": "text", "text": "on."}]
    assert text('{"word": "a"}', parts, TOOLS) == whole
    flat = text({"word": "a"}, "Go on.", [tool["function"] for tool in TOOLS])
    assert flat == whole or family == "hermes", "which writes tools as they are given"


@pytest.mark.parametrize("tokenizer", [student(), of_family("llama3_1"), of_family("qwen3")])
def test_what_was_adopted_is_the_same_dialect_after_saving(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    before, own = find_chat_format(tokenizer), tokenizer.chat_template
    set_chat_format(tokenizer, before)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert find_chat_format(loaded) == before
    assert (loaded.chat_template == own) == (before.origin != "ludus")


def test_what_was_adopted_is_read_by_transformers_alone(tmp_path: Path) -> None:
    tokenizer = student()
    dialect = find_chat_format(tokenizer)
    set_chat_format(tokenizer, dialect)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    talk = ENDED["messages"]
    ids = loaded.apply_chat_template(talk, tools=TOOLS, return_dict=False)
    prompt = loaded.apply_chat_template(
        talk[:1], tools=TOOLS, add_generation_prompt=True, return_dict=False
    )
    heard = loaded.parse_response(ids[len(prompt) :], prefix=prompt, tools=TOOLS)
    function = talk[1]["tool_calls"][0]["function"]
    assert heard["tool_calls"] == [{"type": "function", "function": function}]
    assert heard["content"] == "I add them."


@pytest.mark.parametrize(
    ("tokenizer", "why"),
    [
        (student(None), "There is no chat template"),
        (of_family("gemma4"), "The chat template does not mark the assistant's tokens"),
        (of_family("deepseekv3"), "The chat template leaves out tools or results"),
        (of_family("cohere2"), "The chat template refuses a conversation with tools"),
        (
            student(WORDS),
            "The chat template leaves out tools or results",
        ),
        (
            student(MARKED.replace("im_", "my_").replace("add_generation_prompt", "false")),
            "The chat template does not write where the assistant is to speak",
        ),
        (
            student(MARKED.replace("im_", "my_").replace("tool_call>", "use>")),
            "The chat template writes replies in a way that cannot be read back",
        ),
    ],
)
def test_what_has_no_dialect_is_one_line_that_says_why(
    tokenizer: PreTrainedTokenizerFast, why: str
) -> None:
    with pytest.raises(TemplateUnmarked, match=why) as caught:
        find_chat_format(tokenizer)
    assert isinstance(caught.value, LudusError) and "\n" not in str(caught.value)
    assert "no family that Ludus knows. Name a chat model of a known family (hermes," in str(
        caught.value
    )


def test_a_tokenizer_that_loses_capitals_can_be_given_no_dialect() -> None:
    tokenizer = student()
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    with pytest.raises(
        TemplateUnmarked, match=r"Ludus's own writes replies in a way that cannot be"
    ):
        find_chat_format(tokenizer)


def test_a_model_that_can_only_be_talked_to_has_at_best_words() -> None:
    assert find_chat_format_with_fallback(of_family("deepseekv3")).name == "deepseekv3"
    assert find_chat_format_with_fallback(of_family("llama3")).origin == "ludus"
    with pytest.raises(TemplateUnmarked):
        find_chat_format_with_fallback(student(None))


def test_a_dialect_is_found_without_loading_torch() -> None:
    program = "import sys, ludus.policy.chat.chat_format as d; d.trl_families(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n" and {"qwen3", "llama3"} <= set(trl_families())
