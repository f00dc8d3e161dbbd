"""Rendering of conversations: ids, loss mask, text spans and truncation."""

from __future__ import annotations

import pytest
from tiny_tokenizers import CHATML, of_family, student, with_tokens_of
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers

from ludus.errors import TemplateRefused
from ludus.policy.chat.chat_format import FAMILIES, find_chat_format
from ludus.policy.chat.rendering import (
    Conversation,
    RenderedConversation,
    TextSpan,
    render,
    render_many,
    render_text,
)
from policy.conversations import ENDED, INSTRUCTED, PLAYED, TALK, TOOLS, said

pytestmark = pytest.mark.filterwarnings("default")  # TRL and torch warn about each other.


def test_of_several_templates_tool_use_is_used_with_tools() -> None:
    several = student(None)
    several.chat_template = {"default": CHATML, "tool_use": "{{ raise_exception('tools') }}"}
    assert any(render(several, TALK["messages"], None, None).mask)
    with pytest.raises(TemplateRefused, match="tools"):
        render(several, TALK["messages"], [{"name": "guess"}], None)


def test_text_spans_cover_the_whole_text() -> None:
    tokenizer = of_family("qwen2_5")
    template = find_chat_format(tokenizer).template
    rendered = render(tokenizer, INSTRUCTED["messages"], None, template)
    special = frozenset(tokenizer.added_tokens_decoder)
    spans = list(rendered.text_spans(special))
    assert "".join(span.text for span in spans) == rendered.text
    assert rendered.text == render_text(tokenizer, INSTRUCTED["messages"], None, template)
    assert TextSpan("<|im_start|>", has_loss=False, special=True) in spans
    assert TextSpan("<|im_end|>", has_loss=True, special=True) in spans
    trained = "".join(span.text for span in spans if span.has_loss)
    assert "zwölf" in trained and "careful" not in trained


def test_spans_are_the_ranges_with_loss() -> None:
    rendered = render(student(), TALK["messages"], None, None)
    assert len(rendered.spans) == 2
    for start, end in rendered.spans:
        assert all(rendered.mask[start:end]) and not rendered.mask[start - 1]
    assert sum(end - start for start, end in rendered.spans) == sum(rendered.mask)


def test_truncate_keeps_the_first_tokens() -> None:
    rendered = render(student(), TALK["messages"], None, None)
    cut = rendered.truncate(20)
    assert (cut.ids, cut.mask) == (rendered.ids[:20], rendered.mask[:20])
    assert rendered.text.startswith(cut.text) and len(cut.text) < len(rendered.text)
    assert rendered.truncate(None) is rendered.truncate(len(rendered.ids)) is rendered


def test_an_error_of_a_template_is_one_line() -> None:
    tokenizer = student(
        "{{ raise_exception('No\n tools here') }}{% generation %}{% endgeneration %}"
    )
    with pytest.raises(TemplateRefused, match=r": No tools here$"):
        render(tokenizer, [said("user", "Hi.")], None, None)


@pytest.mark.parametrize("family", FAMILIES)
def test_render_many_equals_apply_chat_template(family: str) -> None:
    tokenizer = with_tokens_of(family)
    template = find_chat_format(tokenizer).template
    rows = [PLAYED, TALK, INSTRUCTED, ENDED, PLAYED]
    conversations = [Conversation(row["messages"], row.get("tools")) for row in rows]
    for row, rendered in zip(rows, render_many(tokenizer, conversations, template), strict=True):
        expected = tokenizer.apply_chat_template(
            row["messages"], tools=row.get("tools"), chat_template=template,
            return_dict=True, return_assistant_tokens_mask=True,
        )  # fmt: skip
        assert isinstance(rendered, RenderedConversation)
        assert list(rendered.ids) == expected["input_ids"]
        assert list(rendered.mask) == expected["assistant_masks"]
        assert rendered.starts == tuple(start for start, _ in expected.encodings[0].offsets)


def test_context_sensitive_tokens_are_not_split_off() -> None:
    """Tokens that absorb white space, normalized letters, a prefix at the start of the text."""
    tokenizer = student()
    backend = tokenizer.backend_tokenizer
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(prepend_scheme="first"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("<left>", lstrip=True), AddedToken("Word", normalized=True)])
    messages = [
        said("user", "Ein Word  <left> and WORD"),
        said("assistant", " ﬁne <left>"),
    ]
    whole = tokenizer(render_text(tokenizer, messages, None, None), add_special_tokens=False)
    assert list(render(tokenizer, messages, None, None).ids) == whole.input_ids
    assert tokenizer.convert_tokens_to_ids("<left>") in whole.input_ids


def test_a_refused_conversation_does_not_affect_the_others() -> None:
    tokenizer = of_family("gemma3")
    template = tokenizer.chat_template
    conversations = [
        Conversation(row["messages"], row.get("tools")) for row in (TALK, PLAYED, TALK)
    ]
    first, refused, last = render_many(tokenizer, [*conversations, Conversation([])][:3], template)
    assert first == last and isinstance(first, RenderedConversation)
    assert isinstance(refused, TemplateRefused) and "must alternate" in str(refused)
    (empty,) = render_many(tokenizer, [Conversation([])], template)
    assert isinstance(empty, TemplateRefused) and "no message" in str(empty)


def test_render_many_of_nothing_is_empty() -> None:
    assert render_many(student(), [], CHATML) == []


def test_the_prompt_of_a_pair_has_no_loss_on_either_side() -> None:
    tokenizer = student()
    template = find_chat_format(tokenizer).template
    prompt, chosen = PLAYED["messages"][:4], PLAYED["messages"][4:]
    sides = [
        render(tokenizer, prompt + side, TOOLS, template, num_prompt_messages=len(prompt))
        for side in (chosen, chosen[:1])
    ]
    assert sides[0] == render(tokenizer, PLAYED["messages"], TOOLS, template, num_prompt_messages=4)
    assert [len(side.spans) for side in sides] == [3, 1]


def test_a_generation_prompt_ends_the_text_and_has_no_loss() -> None:
    tokenizer = student()
    template = find_chat_format(tokenizer).template
    rendered = render(tokenizer, TALK["messages"][:1], None, template, add_generation_prompt=True)
    assert rendered.text.endswith("<|im_start|>assistant\n") and not any(rendered.mask)
