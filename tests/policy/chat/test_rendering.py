"""What a row becomes under a template, alone and among many, and how it is cut into pieces."""

from __future__ import annotations

import pytest
from students import CHATML, of_family, student, with_tokens_of
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers

from ludus.errors import TemplateRefused
from ludus.policy.chat.chat_format import FAMILIES, find_chat_format
from ludus.policy.chat.rendering import (
    Conversation,
    RenderedConversation,
    TextSpan,
    render,
    render_many,
    render_pair,
    render_text,
)
from policy.conversations import ENDED, INSTRUCTED, PLAYED, TALK, TOOLS, said

pytestmark = pytest.mark.filterwarnings("default")  # TRL and torch warn about each other.


def test_of_several_templates_the_one_for_tools_is_taken_with_tools() -> None:
    several = student(None)
    several.chat_template = {"default": CHATML, "tool_use": "{{ raise_exception('tools') }}"}
    assert any(render(several, TALK["messages"], None, None).mask)
    with pytest.raises(TemplateRefused, match="tools"):
        render(several, TALK["messages"], [{"name": "guess"}], None)


def test_the_pieces_of_a_row_are_its_whole_text() -> None:
    tokenizer = of_family("qwen2_5")
    template = find_chat_format(tokenizer).template
    made = render(tokenizer, INSTRUCTED["messages"], None, template)
    special = frozenset(tokenizer.added_tokens_decoder)
    pieces = list(made.text_spans(special))
    assert "".join(piece.text for piece in pieces) == made.text
    assert made.text == render_text(tokenizer, INSTRUCTED["messages"], None, template)
    assert TextSpan("<|im_start|>", has_loss=False, special=True) in pieces
    assert TextSpan("<|im_end|>", has_loss=True, special=True) in pieces
    trained = "".join(piece.text for piece in pieces if piece.has_loss)
    assert "zwölf" in trained and "careful" not in trained


def test_spans_are_the_stretches_that_bear_the_loss() -> None:
    made = render(student(), TALK["messages"], None, None)
    assert len(made.spans) == 2
    for start, end in made.spans:
        assert all(made.mask[start:end]) and not made.mask[start - 1]
    assert sum(end - start for start, end in made.spans) == sum(made.mask)


def test_a_cut_row_is_the_beginning_of_the_whole_one() -> None:
    made = render(student(), TALK["messages"], None, None)
    cut = made.truncate(20)
    assert (cut.ids, cut.mask) == (made.ids[:20], made.mask[:20])
    assert made.text.startswith(cut.text) and len(cut.text) < len(made.text)
    assert made.truncate(None) is made.truncate(len(made.ids)) is made


def test_what_a_template_raises_is_one_line() -> None:
    tokenizer = student(
        "{{ raise_exception('No\n tools here') }}{% generation %}{% endgeneration %}"
    )
    with pytest.raises(TemplateRefused, match=r"refuses it: No tools here$"):
        render(tokenizer, [said("user", "Hi.")], None, None)


@pytest.mark.parametrize("family", FAMILIES)
def test_many_are_each_as_transformers_renders_it(family: str) -> None:
    tokenizer = with_tokens_of(family)
    template = find_chat_format(tokenizer).template
    rows = [PLAYED, TALK, INSTRUCTED, ENDED, PLAYED]
    talks = [Conversation(row["messages"], row.get("tools")) for row in rows]
    for row, made in zip(rows, render_many(tokenizer, talks, template), strict=True):
        theirs = tokenizer.apply_chat_template(
            row["messages"], tools=row.get("tools"), chat_template=template,
            return_dict=True, return_assistant_tokens_mask=True,
        )  # fmt: skip
        assert isinstance(made, RenderedConversation)
        assert list(made.ids) == theirs["input_ids"]
        assert list(made.mask) == theirs["assistant_masks"]
        assert made.starts == tuple(start for start, _ in theirs.encodings[0].offsets)


def test_tokenizers_that_mind_what_stands_around_a_piece_are_followed() -> None:
    """White space that belongs to a token, letters that are normalized, a mark at the beginning."""
    tokenizer = student()
    inside = tokenizer.backend_tokenizer
    inside.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    inside.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(prepend_scheme="first"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    inside.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("<left>", lstrip=True), AddedToken("Word", normalized=True)])
    talk = [said("user", "Ein Word  <left> <|im_end|> and WORD"), said("assistant", " ﬁne <left>")]
    whole = tokenizer(render_text(tokenizer, talk, None, None), add_special_tokens=False)
    assert list(render(tokenizer, talk, None, None).ids) == whole.input_ids
    assert tokenizer.convert_tokens_to_ids("<left>") in whole.input_ids


def test_one_that_is_refused_costs_only_itself() -> None:
    tokenizer = of_family("gemma3")
    template = find_chat_format(tokenizer, tools=False).template
    talks = [Conversation(row["messages"], row.get("tools")) for row in (TALK, PLAYED, TALK)]
    first, refused, last = render_many(tokenizer, [*talks, Conversation([])][:3], template)
    assert first == last and isinstance(first, RenderedConversation)
    assert isinstance(refused, TemplateRefused) and "must alternate" in str(refused)
    (empty,) = render_many(tokenizer, [Conversation([])], template)
    assert isinstance(empty, TemplateRefused) and "no message" in str(empty)


def test_nothing_is_nothing() -> None:
    assert render_many(student(), [], CHATML) == []


def test_a_prompt_that_is_given_apart_bears_no_loss_in_either_side() -> None:
    tokenizer = student()
    template = find_chat_format(tokenizer).template
    prompt, better = PLAYED["messages"][:4], PLAYED["messages"][4:]
    pair = render_pair(tokenizer, prompt, better, better[:1], TOOLS, template)
    assert pair.chosen == render(
        tokenizer, PLAYED["messages"], TOOLS, template, num_prompt_messages=4
    )
    assert [len(side.spans) for side in (pair.chosen, pair.rejected)] == [3, 1]


def test_a_row_that_asks_ends_where_the_model_is_to_speak() -> None:
    tokenizer = student()
    template = find_chat_format(tokenizer).template
    asked = render(tokenizer, TALK["messages"][:1], None, template, add_generation_prompt=True)
    assert asked.text.endswith("<|im_start|>assistant\n") and not any(asked.mask)
