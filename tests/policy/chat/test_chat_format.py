"""The chat format of each model family, or one line why there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import WORDS, of_family, student, template_of, with_tokens_of
from tokenizers import normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ludus.errors import LudusError, TemplateUnmarked
from ludus.policy.chat.chat_format import (
    FAMILIES,
    find_chat_format,
    set_chat_format,
)
from ludus.policy.chat.rendering import render, render_text, rendered_prompt_length
from policy.conversations import ENDED, PLAYED, TALK, TOOLS, answer, call, calling, read, said

pytestmark = pytest.mark.filterwarnings("default")  # TRL and torch warn about each other.

MARKED = template_of("qwen3_training")
KNOWN_TO_TRL = ["qwen2_5", "qwen3", "qwen3_5_think", "qwen3_6", "glm4moe", "gptoss"]


def test_a_complete_template_is_used_unchanged() -> None:
    chat_format = find_chat_format(student(MARKED))
    assert (chat_format.name, chat_format.origin, chat_format.template) == ("own", "own", MARKED)


def test_the_tokenizers_own_response_template_comes_first() -> None:
    tokenizer = student(MARKED)
    custom = {
        **find_chat_format(tokenizer).response_template,
        "defaults": {"role": "assistant", "custom": True},
    }
    tokenizer.response_template = custom
    assert find_chat_format(tokenizer).response_template == custom


@pytest.mark.parametrize(
    "own",
    [
        {"start_anchor": "nowhere", "fields": {"content": {}}},
        {"start_anchor": "<|im_start|>assistant", "fields": {"tool_calls": {"open": "<call>"}}},
        {"type": "object", "x-regex": "(.*)"},
    ],
)
def test_a_response_template_that_fails_is_not_used(own: dict[str, Any]) -> None:
    tokenizer = student(MARKED)
    good = find_chat_format(tokenizer).response_template
    tokenizer.response_template = own
    assert find_chat_format(tokenizer).response_template == good


@pytest.mark.parametrize("family", KNOWN_TO_TRL)
def test_a_template_that_trl_knows_is_replaced_by_trls_training_variant(family: str) -> None:
    from trl.chat_template_utils import get_training_chat_template

    tokenizer = of_family(family)
    chat_format = find_chat_format(tokenizer)
    assert (chat_format.name, chat_format.origin) == (family, "trl")
    assert chat_format.template == get_training_chat_template(tokenizer)


@pytest.mark.parametrize("family", [*KNOWN_TO_TRL, "nemotron_3_nano", "qwen3_8"])
def test_replies_are_parsed_as_trl_parses_them(family: str) -> None:
    from trl.chat_template_utils import add_response_schema

    tokenizer = of_family(family)
    chat_format = find_chat_format(tokenizer)
    trl_response = add_response_schema(of_family(family)).response_template
    reply = calling(call("guess", {"word": "007 ☃"}), reasoning_content="Hm.")
    for last in (reply, said("assistant", "It is 42.")):
        talk = [said("user", "Begin."), last]
        prompt_ids = render(
            tokenizer, talk[:1], TOOLS, chat_format.template, add_generation_prompt=True
        ).ids
        ids = render(tokenizer, talk, TOOLS, chat_format.template).ids
        start = rendered_prompt_length(prompt_ids, ids)
        ours = read(tokenizer, chat_format, ids[:start], ids[start:], TOOLS)
        text, prompt = tokenizer.decode(ids[start:]), tokenizer.decode(ids[:start])
        trls = tokenizer.parse_response(text, dict(trl_response), prefix=prompt, tools=TOOLS)
        functions = [each.function.model_dump() for each in ours.tool_calls or ()]
        for function in functions:
            function["arguments"] = json.loads(function["arguments"])
        assert functions == [each["function"] for each in trls.get("tool_calls", ())]
        assert bool(functions) == (last is reply)
        assert ours.reasoning_content == trls.get("reasoning_content", trls.get("thinking"))
        if last is not reply:  # Behind a call TRL's content contains the stop token.
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
def test_a_template_without_tools_or_marks_is_replaced_by_that_of_ludus(
    family: str, ours: str
) -> None:
    chat_format = find_chat_format(of_family(family))
    assert (chat_format.name, chat_format.origin) == (ours, "ludus")


@pytest.mark.parametrize("family", ["deepseekv3", "cohere2"])
def test_without_tools_trls_templates_are_accepted(family: str) -> None:
    chat_format = find_chat_format(of_family(family), require_tools=False)
    assert (chat_format.name, chat_format.origin) == (family, "trl")


def test_a_modified_template_still_has_its_family() -> None:
    changed = template_of("qwen3") + " "
    assert find_chat_format(student(changed)).name == "chatml"
    tokens = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
    assert find_chat_format(student(changed, tokens=tokens)).name == "hermes"


def test_the_family_whose_tokens_the_template_writes_is_preferred() -> None:
    both = student(template_of("llama3"), tokens=("<|im_start|>", "<|im_end|>"))
    assert find_chat_format(both).name == "llama3"


@pytest.mark.parametrize("family", FAMILIES)
def test_ludus_templates_end_each_turn_and_train_its_end(family: str) -> None:
    tokenizer = with_tokens_of(family)
    chat_format = find_chat_format(tokenizer)
    assert (chat_format.name, chat_format.origin) == (family, "ludus")
    rendered = render(tokenizer, PLAYED["messages"], TOOLS, chat_format.template)
    assert len(rendered.spans) == 4
    assert all(rendered.ids[end - 1] in chat_format.stop_token_ids for _, end in rendered.spans)
    assert (
        tokenizer.convert_tokens_to_ids(FAMILIES[family][-1]) in rendered.ids or family == "hermes"
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tools", [TOOLS, None])
def test_ludus_templates_are_prefix_preserving(
    family: str, tools: list[dict[str, Any]] | None
) -> None:
    tokenizer = with_tokens_of(family)
    template = find_chat_format(tokenizer).template
    messages = PLAYED["messages"]
    texts = [render_text(tokenizer, messages[:end], tools, template) for end in range(1, 11)]
    assert all(longer.startswith(text) for text, longer in pairwise(texts))


@pytest.mark.parametrize("family", FAMILIES)
def test_ludus_templates_write_no_tools_if_there_are_none(family: str) -> None:
    tokenizer = with_tokens_of(family)
    template = find_chat_format(tokenizer).template
    plain = render_text(tokenizer, TALK["messages"], None, template)
    assert plain == render_text(tokenizer, TALK["messages"], [], template)
    assert "tool" not in plain.lower()
    assert render_text(tokenizer, TALK["messages"], TOOLS, template) != plain


@pytest.mark.parametrize("family", FAMILIES)
def test_ludus_templates_accept_all_forms_of_rows(family: str) -> None:
    tokenizer = with_tokens_of(family)
    template = find_chat_format(tokenizer).template

    def text(arguments: Any, parts: Any, tools: Any) -> str:
        talk = [{"role": "user", "content": parts}, calling(call("guess", arguments)), answer("no")]
        return render_text(tokenizer, talk, tools, template)

    whole = text({"word": "a"}, "Go on.", TOOLS)
    parts = [{"type": "text", "text": "Go "}, {"type": "text", "text": "on."}]
    assert text('{"word": "a"}', parts, TOOLS) == whole
    flat = text({"word": "a"}, "Go on.", [tool["function"] for tool in TOOLS])
    assert flat == whole or family == "hermes", "hermes writes tools unchanged"


@pytest.mark.parametrize("tokenizer", [student(), of_family("llama3_1"), of_family("qwen3")])
def test_a_saved_chat_format_is_found_again(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    before, own = find_chat_format(tokenizer), tokenizer.chat_template
    set_chat_format(tokenizer, before)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert find_chat_format(loaded) == before
    assert (loaded.chat_template == own) == (before.origin != "ludus")


def test_transformers_alone_parses_replies_of_a_saved_chat_format(tmp_path: Path) -> None:
    tokenizer = student()
    chat_format = find_chat_format(tokenizer)
    set_chat_format(tokenizer, chat_format)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    talk = ENDED["messages"]
    ids = loaded.apply_chat_template(talk, tools=TOOLS, return_dict=False)
    prompt = loaded.apply_chat_template(
        talk[:1], tools=TOOLS, add_generation_prompt=True, return_dict=False
    )
    parsed = loaded.parse_response(ids[len(prompt) :], prefix=prompt, tools=TOOLS)
    function = talk[1]["tool_calls"][0]["function"]
    assert parsed["tool_calls"] == [{"type": "function", "function": function}]
    assert parsed["content"] == "I add them."


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [
        (student(None), "no chat template"),
        (of_family("gemma4"), "not mark"),
        (of_family("deepseekv3"), "leaves out"),
        (of_family("cohere2"), "refuses"),
        (student(WORDS), "leaves out"),
        (
            student(MARKED.replace("im_", "my_").replace("add_generation_prompt", "false")),
            "start of the assistant's turn",
        ),
        (
            student(MARKED.replace("im_", "my_").replace("tool_call>", "use>")),
            "read back",
        ),
    ],
)
def test_a_template_that_fails_raises_one_line_with_the_reason(
    tokenizer: PreTrainedTokenizerFast, reason: str
) -> None:
    with pytest.raises(TemplateUnmarked, match=reason) as caught:
        find_chat_format(tokenizer)
    assert isinstance(caught.value, LudusError) and "\n" not in str(caught.value)
    assert "hermes" in str(caught.value)


def test_a_lowercasing_tokenizer_has_no_chat_format() -> None:
    tokenizer = student()
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    with pytest.raises(TemplateUnmarked, match="cannot be read back"):
        find_chat_format(tokenizer)


def test_the_fallback_accepts_templates_without_tools() -> None:
    assert find_chat_format(of_family("deepseekv3"), require_tools=False).name == "deepseekv3"
    assert find_chat_format(of_family("llama3"), require_tools=False).origin == "ludus"
    with pytest.raises(TemplateUnmarked):
        find_chat_format(student(None), require_tools=False)


def test_templates_are_found_without_importing_torch() -> None:
    code = """
import sys
from ludus.policy.chat import chat_format
chat_format._trl_replacements()
print("torch" in sys.modules)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.stdout == "False\n"
